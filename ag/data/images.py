"""Images of files as samples: decoded by Pillow when asked for, cut to one size, normalised.

Crops and flips follow from the seed, the pass and the image's number alone.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ag.data.samples import Pass, Samples
from ag.data.threads import Check
from ag.engine.primitive import Array
from ag.version import install_line

if TYPE_CHECKING:
    from PIL.Image import Image

Transform = Callable[[Array], Array]  # an image (height, width, 3) -> another one

_64_BITS = (1 << 64) - 1
_CUTS = 1  # last word of the counter of cuts; orders of a loader have 0


@dataclass(frozen=True, eq=False)
class ImageList:
    """Images, and the class of each.

    Attributes
    ----------
    path : Path
        Of the folder, for messages.
    files : tuple of Path
    ids : ndarray of int
        For each file the number of its class.
    classes : tuple of str
    """

    path: Path
    files: tuple[Path, ...]
    ids: Array
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.files)


class Fit(NamedTuple):
    """The way in which images of all sizes become arrays of one."""

    height: int
    width: int
    shorter_side: int | None = None  # its length before height and width are cut out; None resizes the whole image
    random_crop: bool = False
    random_flip: bool = False
    mean: tuple[float, ...] | None = None  # of red, green and blue
    deviation: tuple[float, ...] | None = None


class ImageFiles(Samples):
    """The images of files: red, green and blue, from 0 to 1 or normalised, on the first axis."""

    def __init__(self, files: Sequence[Path], fit: Fit, transform: Transform | None = None) -> None:
        self._files, self._fit, self._transform = tuple(files), fit, transform
        try:
            self._folder = os.getcwd()  # where relative paths begin, also after os.chdir
        except FileNotFoundError:
            self._folder = ""
        self.threads = min(os.cpu_count() or 1, 8)  # Pillow releases Python's lock

    def __len__(self) -> int:
        return len(self._files)

    def take(self, chosen: Array, check: Check, of: Pass) -> tuple[Array, ...]:
        images = []
        for i in chosen.tolist():
            check()
            images.append(self._image(i, of))
        return (np.stack(images, axis=-1),)

    def _image(self, i: int, of: Pass) -> Array:
        library, file = pillow(), self._files[i]
        try:
            path = os.path.join(self._folder, file)
            if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
                raise ValueError("it is no regular file")
            with library.open(path, formats=_FORMATS) as image:
                limit = library.MAX_IMAGE_PIXELS  # Pillow only warns up to twice of it
                if limit is not None and image.width * image.height > limit:
                    raise ValueError(f"it has {image.width} x {image.height} pixels, more than the {limit} of "
                                     f"PIL.Image.MAX_IMAGE_PIXELS")
                if image.mode in _EIGHT_BITS and _SIGNED not in getattr(image, "tag_v2", {}).get(_KIND, ()):
                    plain, largest = image.convert("RGB"), 255
                else:
                    plain, largest = library.fromarray(_shades(image)), 1
                if self._transform is None:
                    pixels = np.asarray(self._fitted(plain, i, of, library), np.float32)
        except Exception as error:  # broken files make Pillow raise errors of every kind
            raise ValueError(f"ag_image_folder: {file} cannot be decoded ({error}); repair, convert or remove "
                             f"it.") from error
        if self._transform is not None:
            changed = self._changed(_colours(np.asarray(plain)), self._transform, file)
            if changed.dtype.kind == "f":
                return np.ascontiguousarray(changed.transpose(2, 0, 1), np.float32)
            pixels = np.asarray(self._fitted(library.fromarray(changed), i, of, library), np.float32)
            largest = 255
        colours = _colours(pixels).transpose(2, 0, 1) / np.float32(largest)
        if self._fit.mean is None:
            return colours
        mean, deviation = (np.array(x, np.float32)[:, None, None] for x in (self._fit.mean, self._fit.deviation))
        with np.errstate(all="ignore"):
            normalised: Array = (colours - mean) / deviation
        return normalised

    def _changed(self, image: Array, transform: Transform, file: Path) -> Array:
        """Return the image that the user's function makes of one."""
        try:
            changed: object = transform(np.array(image))  # its own, and writable
        except Exception as error:
            if sys.version_info >= (3, 11):  # exceptions of 3.10 take no notes
                error.add_note(f"ag_image_folder was giving {file} to transform.")
            raise
        size = self._fit.height, self._fit.width, 3
        if isinstance(changed, np.ndarray) and changed.ndim == 3 and changed.shape[2] == 3 and changed.size and (
                changed.dtype == np.uint8 or (changed.dtype.kind == "f" and changed.shape == size)):
            return np.ascontiguousarray(changed)
        what = f"an array of shape {changed.shape} and type {changed.dtype}" if isinstance(
            changed, np.ndarray) else f"a {type(changed).__name__}"
        raise ValueError(f"ag_image_folder: transform returned {what} for {file}; an array (height, width, 3) of uint8 "
                         f"is required, or one {size} of floats, which is taken as it is.")

    def _fitted(self, image: Image, i: int, of: Pass, library: ModuleType) -> Image:
        """Return the image in its final size."""
        fit, bilinear = self._fit, library.Resampling.BILINEAR
        down, across, turned = np.random.Philox(
            key=(of.seed & _64_BITS) | i << 64, counter=[0, 0, of.number, _CUTS]).random_raw(3).tolist()
        if fit.shorter_side is None:
            image = image.resize((fit.width, fit.height), bilinear)
        else:
            width, height = (max(1, fit.shorter_side * side // min(image.size)) for side in image.size)
            if library.MAX_IMAGE_PIXELS is not None and width * height > library.MAX_IMAGE_PIXELS:
                raise ValueError(f"it is {image.width} x {image.height}, and with a shorter side of "
                                 f"{fit.shorter_side} it would have more than {library.MAX_IMAGE_PIXELS} pixels")
            room = height - fit.height, width - fit.width
            top, left = (down % (room[0] + 1), across % (room[1] + 1)) if fit.random_crop else map(_half, room)
            image = image.resize((width, height), bilinear).crop((left, top, left + fit.width, top + fit.height))
        if fit.random_flip and turned >> 63:
            image = image.transpose(library.Transpose.FLIP_LEFT_RIGHT)
        return image


def _colours(pixels: Array) -> Array:
    """Return three equal colours for a grey image, others as they are."""
    return np.repeat(pixels[:, :, None], 3, axis=2) if pixels.ndim == 2 else pixels


def _half(room: int) -> int:
    """Round as PyTorch's ``CenterCrop`` does."""
    return round(room / 2)


# Decoded in this process, from this file alone: Pillow runs Ghostscript for EPS, and others hold links to files.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_EIGHT_BITS = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})
_BITS, _PHOTOMETRIC, _KIND = 258, 262, 339  # tags of TIFF
_WHITE_IS_ZERO, _SIGNED = 0, 2  # values of the last two


def _shades(image: Image) -> Array:
    """Return a grey image of another kind as numbers from 0 to 1; a ValueError if its white is unknown."""
    tags = getattr(image, "tag_v2", {})
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):  # 16 bits there
        white = (1 << tags.get(_BITS, (16,))[0]) - 1
    elif image.mode == "F":
        white = 1
    else:
        raise ValueError(f"it is of mode {image.mode}, whose white is unknown")
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        raise ValueError("its zero is white")
    with np.errstate(all="ignore"):
        shades = np.asarray(image).astype(np.float32) / np.float32(white)
        is_grey = ((shades >= 0) & (shades <= 1)).all()
    if not is_grey:
        raise ValueError(f"it holds numbers from {shades.min() * white:g} to {shades.max() * white:g}, and 0 is black "
                         f"and {white} white")
    return shades


def pillow() -> ModuleType:
    """Return Pillow's module of images; an ImportError if it is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"ag_image_folder: Pillow is not installed; run `{install_line('images')}`.") from error
    return Image
