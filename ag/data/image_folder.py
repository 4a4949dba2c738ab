"""Images in a folder per class, decoded by Pillow while the device trains.

A data loader over files: a sequence of samples, each decoded when its batch is due, in the loader's background thread.
It knows nothing of batches.  Pillow is an optional package, loaded when the first folder is opened.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ag.data.dataloader import DataLoader
from ag.engine.primitive import Array
from ag.engine.shape import counts

__all__ = ["ImageFolder", "ag_image_folder"]

_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})


class ImageFolder(DataLoader):
    """Batches of images; each folder in `path` is a class and holds its images.

    Parameters
    ----------
    path : path
    size : int or (int, int)
        Height and width that every image is resized to; one number for both.
    batch_size : int, optional
        At least 1.
    shuffle : bool, optional
        A new order every epoch.
    seed : int, optional
        For the orders; default: from `ag_seed`'s generator.
    prefetch : int, optional
        How many batches a background thread decodes ahead in `epoch`; 0 decodes in the calling thread, as
        `next_batch` does.
    drop_last : bool, optional
        Leave out a last batch that is smaller than the others.

    Raises
    ------
    ImportError
        If Pillow is not installed.
    FileNotFoundError
        If there is no such folder.
    ValueError
        If it holds no class folders, a class holds no images, or a number is out of range.  Reading a batch raises it
        too, with the name of the file, if an image cannot be decoded.

    Notes
    -----
    ``batch.x`` is a tensor of shape (3, height, width, batch), red, green and blue from 0 to 1; ``batch.y`` holds class
    ids, numbered in the sorted order of the folders' names, which are in ``classes``; ``files`` are the images in their
    first order.  Images may lie deeper in a class's folder; files that do not end like an image (``.png``, ``.jpg``,
    ...), and files and folders whose names begin with a dot, are not looked at.  Loaders share everything else with
    `ag_dataloader`.

    Grey images of 16 bits keep them, and grey floats must lie from 0 to 1; images of other kinds whose white is not
    known, such as whole numbers of 32 bits, are refused.  Transparency is dropped, of animations the first image is
    taken, and the orientation that a camera notes in a file (EXIF) is not applied, as in PyTorch's ``ImageFolder``.

    Examples
    --------
    >>> import ag, os, tempfile
    >>> from PIL import Image
    >>> path = tempfile.mkdtemp()
    >>> for name in ("cat", "dog"):
    ...     os.mkdir(os.path.join(path, name))
    ...     Image.new("RGB", (8, 6), "red").save(os.path.join(path, name, "1.png"))
    >>> [(batch.x.shape, batch.y.shape) for batch in ag.ag_image_folder(path, size=(4, 5))]
    [((3, 4, 5, 2), (2,))]
    """

    _function = "ag_image_folder"
    _settled = DataLoader._settled | {"path", "size", "classes", "files", "ids"}

    def __init__(self, path: str | os.PathLike[str], size: int | tuple[int, int], batch_size: int = 32,
                 shuffle: bool = True, seed: int | None = None, prefetch: int = 2, drop_last: bool = False) -> None:
        self.size = _height_and_width(size)
        self.path = Path(os.fsdecode(path))
        _pillow()  # rather than when the first batch is due
        folders = sorted(p for p in self.path.iterdir() if p.is_dir() and not p.name.startswith("."))
        if not folders:
            raise ValueError(f"ag_image_folder: {self.path} holds no folders; one per class is required.")
        self.classes = [folder.name for folder in folders]
        images = [_images_in(folder) for folder in folders]
        self.files = [file for files in images for file in files]
        self.ids = np.repeat(np.arange(len(folders)), [len(files) for files in images])
        self.ids.flags.writeable = False
        super().__init__(_Images(tuple(self.files), self.size), self.ids, batch_size, shuffle, drop_last=drop_last,
                         seed=seed, prefetch=prefetch)


class _Images:
    """The images of files, decoded when asked for: red, green and blue from 0 to 1, on the first axis."""

    def __init__(self, files: tuple[Path, ...], size: tuple[int, int]) -> None:
        self._files = files
        self._height, self._width = size

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, i: int) -> Array:
        pillow, file = _pillow(), self._files[i]
        try:
            with pillow.open(file) as image:
                if image.mode in _EIGHT_BITS and _SIGNED not in getattr(image, "tag_v2", {}).get(_KIND, ()):
                    plain, largest = image.convert("RGB"), 255
                else:
                    plain, largest = pillow.fromarray(_shades(image)), 1
                small = np.asarray(plain.resize((self._width, self._height), pillow.Resampling.BILINEAR), np.float32)
        except Exception as error:  # broken files make Pillow raise errors of every kind
            raise ValueError(f"ag_image_folder: {file} cannot be decoded ({error}); repair, convert or remove "
                             f"it.") from error
        if small.ndim == 2:
            small = np.repeat(small[:, :, None], 3, axis=2)
        return small.transpose(2, 0, 1) / np.float32(largest)


_EIGHT_BITS = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})
_BITS, _PHOTOMETRIC, _KIND = 258, 262, 339  # tags of TIFF
_WHITE_IS_ZERO, _SIGNED = 0, 2  # values of the last two


def _shades(image: Any) -> Array:
    """A grey image of another kind as numbers from 0 to 1; a ValueError if it does not say what is white."""
    tags = getattr(image, "tag_v2", {})
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):  # 16 bits there
        white = (1 << tags.get(_BITS, (16,))[0]) - 1
    elif image.mode == "F":
        white = 1
    else:
        raise ValueError(f"it is of mode {image.mode}, whose white is unknown")
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        raise ValueError("its zero is white")
    shades = np.asarray(image).astype(np.float32) / np.float32(white)
    if not ((shades >= 0) & (shades <= 1)).all():
        raise ValueError(f"it holds numbers from {shades.min() * white:g} to {shades.max() * white:g}, and 0 is black "
                         f"and {white} white")
    return shades


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("ag_image_folder: Pillow is not installed; run `pip install ag[images]`.") from error
    return Image


def _height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    both = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(both) != 2 or not counts(*both):
        raise ValueError(f"ag_image_folder: size is {size!r}; height and width of at least 1 are required.")
    return int(both[0]), int(both[1])


def _images_in(folder: Path) -> list[Path]:
    images = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file()
                    and not any(part.startswith(".") for part in p.relative_to(folder).parts))
    if not images:
        raise ValueError(f"ag_image_folder: {folder} holds no images; every class needs at least one.")
    return images


ag_image_folder = ImageFolder
