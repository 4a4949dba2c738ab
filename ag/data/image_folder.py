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
    ...) are not looked at.  Loaders share everything else with `ag_dataloader`.

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

    def __init__(self, path: str | os.PathLike[str], size: int | tuple[int, int], batch_size: int = 32,
                 shuffle: bool = True, seed: int | None = None, prefetch: int = 2, drop_last: bool = False) -> None:
        self.size = _height_and_width(size)
        self.path = Path(path)
        folders = sorted(p for p in self.path.iterdir() if p.is_dir() and not p.name.startswith("."))
        if not folders:
            raise ValueError(f"ag_image_folder: {self.path} holds no folders; one per class is required.")
        self.classes = [folder.name for folder in folders]
        images = [_images_in(folder) for folder in folders]
        self.files = [file for files in images for file in files]
        self.ids = np.repeat(np.arange(len(folders)), [len(files) for files in images])
        super().__init__(_Images(self.files, self.size), self.ids, batch_size, shuffle, drop_last=drop_last, seed=seed,
                         prefetch=prefetch)


class _Images:
    """The images of files, decoded when asked for: red, green and blue from 0 to 1, on the first axis."""

    def __init__(self, files: list[Path], size: tuple[int, int]) -> None:
        self._files = files
        self._height, self._width = size
        self._pillow = _pillow()

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, i: int) -> Array:
        pillow, file = self._pillow, self._files[i]
        try:
            with pillow.open(file) as image:
                small = image.convert("RGB").resize((self._width, self._height), pillow.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
            raise ValueError(f"ag_image_folder: {file} cannot be decoded ({error}); repair or remove it.") from error
        return np.asarray(small, np.float32).transpose(2, 0, 1) / np.float32(255)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("ag_image_folder: Pillow is not installed; run `pip install ag[images]`.") from error
    return Image


def _height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    both = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if len(both) != 2 or not all(isinstance(n, int) and n >= 1 for n in both):
        raise ValueError(f"ag_image_folder: size is {size!r}; height and width of at least 1 are required.")
    return both


def _images_in(folder: Path) -> list[Path]:
    images = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())
    if not images:
        raise ValueError(f"ag_image_folder: {folder} holds no images; every class needs at least one.")
    return images


ag_image_folder = ImageFolder
