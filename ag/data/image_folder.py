"""Images in a folder per class, decoded by Pillow while the device trains.

A data loader whose batches are read from files when they are due, in its background thread.  Pillow is an optional
package, loaded when the first folder is opened.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ag.data.dataloader import DataLoader
from ag.tensor import Array

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
        self._pillow = _pillow()
        self.size = _height_and_width(size)
        self.path = Path(path)
        folders = sorted(p for p in self.path.iterdir() if p.is_dir() and not p.name.startswith("."))
        if not folders:
            raise ValueError(f"ag_image_folder: {self.path} holds no folders; one per class is required.")
        self.classes = [folder.name for folder in folders]
        found = [(file, k) for k, folder in enumerate(folders) for file in _images(folder)]
        self.files = [file for file, _ in found]
        self.ids = np.array([k for _, k in found], np.int64)
        self._start(len(found), batch_size, shuffle, drop_last, seed, prefetch)

    def _gather(self, k: int) -> tuple[Array, Array | None]:
        chosen = self.order[k * self.batch_size : (k + 1) * self.batch_size]
        x = np.empty((3, *self.size, len(chosen)), np.float32)
        for i, sample in enumerate(chosen):
            x[..., i] = self._decoded(self.files[sample])
        x /= 255
        return x, self.ids[chosen]

    def _decoded(self, file: Path) -> Array:
        """An image as numbers from 0 to 255, with the colours on the first axis."""
        height, width = self.size
        try:
            with self._pillow.open(file) as image:
                small = image.convert("RGB").resize((width, height), self._pillow.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError, self._pillow.DecompressionBombError) as error:
            raise ValueError(f"ag_image_folder: {file} cannot be decoded ({error}); repair or remove it.") from error
        return np.asarray(small).transpose(2, 0, 1)


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


def _images(folder: Path) -> list[Path]:
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())
    if not found:
        raise ValueError(f"ag_image_folder: {folder} holds no images; every class needs at least one.")
    return found


ag_image_folder = ImageFolder
