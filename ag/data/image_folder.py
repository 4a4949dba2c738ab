"""Images in a folder per class, or those of a list, decoded by Pillow while the device trains."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numpy as np

from ag.data.dataloader import MASK, DataLoader
from ag.data.samples import Check, Pass, Samples
from ag.engine.primitive import Array
from ag.engine.shape import counts
from ag.version import install_line

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ImageFolder", "ag_image_folder"]

Folder = TypeVar("Folder", bound="ImageFolder")
Transform = Callable[[Array], Array]  # an image (height, width, 3) -> another one

_CUTS = 1  # last word of the counter of cuts; orders of a loader have 0


@dataclass(frozen=True, eq=False)
class ImageList:
    """Images, and for each the number of its class; `path` is that of the folder, for messages."""

    path: Path
    files: tuple[Path, ...]
    ids: Array
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.files)


Images = str | os.PathLike[str] | ImageList | tuple[Sequence[object], Sequence[object]] | list[tuple[object, object]]


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
        self._files, self._fit, self.transform = tuple(files), fit, transform
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

    def some(self, numbers: Array, held: bool) -> ImageFiles:
        """Return those with these numbers; of held-out images the middle is cut out, and none is mirrored."""
        part = copy(self)
        part._files = tuple(self._files[i] for i in numbers)
        part._fit = self._fit._replace(random_crop=False, random_flip=False) if held else self._fit
        return part

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
                if self.transform is None:
                    pixels = np.asarray(self._fitted(plain, i, of, library), np.float32)
        except Exception as error:  # broken files make Pillow raise errors of every kind
            raise ValueError(f"ag_image_folder: {file} cannot be decoded ({error}); repair or remove it.") from error
        if self.transform is not None:
            changed = self._changed(_colours(np.asarray(plain)), self.transform, file)
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
        except Exception as error:  # of whatever kind the user's function raises; it goes on with the file's name
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
            key=(of.seed & MASK) | i << 64, counter=[0, 0, of.number, _CUTS]).random_raw(3).tolist()
        if fit.shorter_side is None:
            image = image.resize((fit.width, fit.height), bilinear)
        else:
            width, height = (max(1, fit.shorter_side * side // min(image.size)) for side in image.size)
            if library.MAX_IMAGE_PIXELS is not None and width * height > library.MAX_IMAGE_PIXELS:
                raise ValueError(f"it is {image.width} x {image.height}, and with a shorter side of "
                                 f"{fit.shorter_side} it would have more than {library.MAX_IMAGE_PIXELS} pixels")
            room = height - fit.height, width - fit.width
            top, left = (down % (room[0] + 1), across % (room[1] + 1)) if fit.random_crop else (
                round(side / 2) for side in room)  # rounds as PyTorch's CenterCrop does
            image = image.resize((width, height), bilinear).crop((left, top, left + fit.width, top + fit.height))
        if fit.random_flip and turned >> 63:
            image = image.transpose(library.Transpose.FLIP_LEFT_RIGHT)
        return image


def _colours(pixels: Array) -> Array:
    """Return three equal colours for a grey image, others as they are."""
    return np.repeat(pixels[:, :, None], 3, axis=2) if pixels.ndim == 2 else pixels


# Decoded in this process, from this file alone: Pillow runs Ghostscript for EPS, and others hold links to files.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})
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


class ImageFolder(DataLoader):
    """Batches of images; each folder in `path` is a class and holds its images.

    Parameters
    ----------
    path : path, (files, labels), list of (file, label), or ImageList
        A folder of folders; or files with the id or the name of the class of each.
    size : int or (int, int)
        Height and width of every image in a batch; one number for both.
    batch_size, shuffle, seed, prefetch, drop_last : optional
        As of `ag_dataloader`; several threads decode for `dp_train`.
    shorter_side : int, optional
        Resize the shorter side of every image to this many pixels, at least `size`, and cut `size` out of the middle.
        Default: resize the whole image to `size`, whatever its sides.
    random_crop : bool, optional
        Cut at random instead, for training; needs `shorter_side`.
    random_flip : bool, optional
        Mirror half of the images, left to right, at random.
    normalize : pair of sequences of three floats, optional
        Mean and standard deviation of red, green and blue.
    transform : callable, optional
        ``transform(image)``: another image for each, before it is resized and cut.  See Notes.
    classes : sequence of str, optional
        With files and labels, the name of every class in the order of the ids; default: the labels' names, sorted.

    Notes
    -----
    ``batch.x`` is a tensor of shape (3, height, width, batch), red, green and blue from 0 to 1, or normalised;
    ``batch.y`` holds class ids, numbered in the sorted order of the folders' names, which are in ``classes``; ``files``
    are the images in their first order.  Links and deeper folders are followed; names that begin with a dot, or do not
    end like an image, are left out.  A file is BMP, GIF, JPEG, PNG, PPM, TIFF or WebP, whatever it is called.

    Crops and flips follow from the seed, in `dp_train` the job's, the number of the pass and the image alone.

    `transform` gets the decoded image, an array of shape (height, width, 3) and type uint8 (of images with more bits,
    floats from 0 to 1), and returns one.  One of uint8, in any size, goes on as a decoded image would.  One of floats
    must be of `size`, and is taken as it is.  An albumentations pipeline is given as
    ``transform=lambda image: pipeline(image=image)["image"]``.  Several threads call it at the same time.

    Grey images of 16 bits keep them, and grey floats must lie from 0 to 1; other kinds whose white is unknown are
    refused.  Transparency is dropped, of animations the first image is taken, and EXIF's orientation is not applied.
    A ValueError names an image that cannot be decoded, or has more pixels than ``PIL.Image.MAX_IMAGE_PIXELS``.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> file = tempfile.mkdtemp() + "/cat.png"
    >>> Image.new("RGB", (8, 6), "red").save(file)
    >>> [(x.shape, y.tolist()) for x, y in ag.ag_image_folder([(file, "cat")], size=(4, 5))]
    [((3, 4, 5, 1), [0])]
    """

    _function = "ag_image_folder"
    _settled = DataLoader._settled | {"path", "size", "classes", "files", "ids", "shorter_side", "random_crop",
                                      "random_flip", "normalize", "transform"}

    def __init__(self, path: Images, size: int | tuple[int, int], batch_size: int = 32,
                 shuffle: bool = True, seed: int | None = None, prefetch: int = 2, drop_last: bool = False, *,
                 shorter_side: int | None = None, random_crop: bool = False, random_flip: bool = False,
                 normalize: tuple[Sequence[float], Sequence[float]] | None = None,
                 transform: Transform | None = None, classes: Sequence[str] | None = None) -> None:
        if isinstance(path, (tuple, list)):
            path = _labelled(path, classes)
        elif classes is not None or not isinstance(path, (str, bytes, os.PathLike, ImageList)):
            raise TypeError(f"ag_image_folder: path is a {type(path).__name__}; the name of a folder is required, or "
                            f"files and labels, which alone can have classes.")
        both = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
        if len(both) != 2 or not counts(*both):
            raise ValueError(f"ag_image_folder: size is {size!r}; height and width of at least 1 are required.")
        self.size = int(both[0]), int(both[1])
        self._check_settings(batch_size, prefetch, seed, random_crop=random_crop, random_flip=random_flip)
        if shorter_side is not None and not (counts(shorter_side) and shorter_side >= max(self.size)):
            raise ValueError(f"ag_image_folder: shorter_side is {shorter_side!r} and size {self.size}; a whole number "
                             f"of at least {max(self.size)} is required, as `size` is cut out.")
        if random_crop and shorter_side is None:
            raise ValueError("ag_image_folder: random_crop was given without shorter_side, so there is nothing to "
                             "choose from; give shorter_side, larger than size.")
        self.shorter_side, self.random_crop, self.random_flip = shorter_side, bool(random_crop), bool(random_flip)
        self.normalize = None if normalize is None else _mean_and_deviation(normalize)
        if not (transform is None or callable(transform)):
            raise TypeError(f"ag_image_folder: transform is a {type(transform).__name__}; give a function of an image.")
        self.transform = transform
        pillow()  # rather than when the first batch is due
        listed = path if isinstance(path, ImageList) else _images_of(Path(os.fsdecode(path)))
        self.path = listed.path
        self.classes, self.files, self.ids = list(listed.classes), list(listed.files), listed.ids
        mean, deviation = self.normalize or (None, None)
        images = ImageFiles(listed.files, Fit(*self.size, shorter_side, self.random_crop, self.random_flip, mean,
                                              deviation), transform)
        super().__init__(images, self.ids, batch_size, shuffle, drop_last=drop_last, seed=seed, prefetch=prefetch)

    def _some(self: Folder, numbers: Array, held: bool) -> Folder:
        part = super()._some(numbers, held)
        vars(part).update(files=[self.files[i] for i in numbers], ids=self.ids[numbers],
                          **({"random_crop": False, "random_flip": False} if held else {}))
        return part

    def split(self: Folder, sizes: float | Sequence[float] = 0.8, *, seed: int = 0, stratify: object = False,
              groups: object = None, transforms: Sequence[Transform | None] | None = None) -> tuple[Folder, ...]:
        """Share the images out as `ag.data.split` does; only the first part crops and flips at random.

        Of a folder with a `transform`, `transforms` has one for each part, such as ``(augment, None)``.
        """
        parts = super().split(sizes, seed=seed, stratify=stratify, groups=groups)
        given = [None] * len(parts) if transforms is None else [*transforms]
        if len(given) != len(parts) or (transforms is None and self.transform is not None):
            raise ValueError(f"{self._function}.split: transforms is {transforms!r:.60}; one, or None, for each of "
                             f"{len(parts)} parts is required, such as (folder.transform, None) if it only augments.")
        for part, transform in zip(parts, given, strict=True):
            vars(part)["transform"] = cast(ImageFiles, part._data[0]).transform = transform
        return parts


def _mean_and_deviation(given: tuple[Sequence[float], Sequence[float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    try:
        mean, deviation = (tuple(part) for part in given)
        fits = len(mean) == len(deviation) == 3 and all(isinstance(x, Real) and isfinite(x) for x in mean + deviation)
    except (TypeError, ValueError):
        fits = False
    if not fits or min(deviation) <= 0:
        raise ValueError(f"ag_image_folder: normalize is {given!r}; a pair of three means and three standard "
                         f"deviations is required, finite numbers, the latter positive.")
    return tuple(map(float, mean)), tuple(map(float, deviation))


def _labelled(given: Any, classes: Sequence[str] | None) -> ImageList:
    """Return the images of (files, labels), or of a list of (file, label)."""
    try:
        files, labels = ([*column] for column in (zip(*given, strict=True) if isinstance(given, list) else given))
        names = [str(k) for k in range(max(labels) + 1)] if isinstance(labels[0], Integral) else sorted({*labels})
        names = names if classes is None else [*classes]
        if not all(isinstance(name, str) for name in names):
            raise TypeError("a label is no id and no name")
        id_of = {name: k for k, name in enumerate(names)} | {k: k for k in range(len(names))}
        ids = np.array([id_of[label] for label in labels])
        return ImageList(Path(), tuple(Path(os.fsdecode(file)) for file, _ in zip(files, ids, strict=True)), ids,
                         tuple(names))
    except (TypeError, ValueError, LookupError) as error:
        raise ValueError(f"ag_image_folder: path is {given!r:.80} ({error}); a folder, (files, labels) or a list of "
                         f"(file, label) is required, where labels are ids, or names that are in classes.") from error


def _images_of(path: Path) -> ImageList:
    if not path.is_dir():
        raise FileNotFoundError(f"ag_image_folder: {path} is {'a file' if path.exists() else 'not there'}; a folder "
                                f"with a folder per class is required.")
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not folders:
        raise ValueError(f"ag_image_folder: {path} holds no folders; one per class is required.")
    images = [sorted(p for p in map(Path, _files_in(os.fspath(folder), frozenset())) if p.suffix.lower() in _SUFFIXES)
              for folder in folders]
    if [] in images:
        raise ValueError(f"ag_image_folder: {folders[images.index([])]} holds no images; every class needs one.")
    ids = np.repeat(np.arange(len(folders)), [len(files) for files in images])
    ids.flags.writeable = False
    return ImageList(path, tuple(file for files in images for file in files), ids,
                     tuple(folder.name for folder in folders))


def _files_in(folder: str, above: frozenset[str]) -> Iterator[str]:
    """Yield the files in a folder and below it, also through links; a folder above itself is left out."""
    real = os.path.realpath(folder)
    if real not in above:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.startswith("."):
                    if entry.is_dir():
                        yield from _files_in(entry.path, above | {real})
                    elif entry.is_file():
                        yield entry.path


ag_image_folder = ImageFolder
