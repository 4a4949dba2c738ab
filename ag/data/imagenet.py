"""ImageNet's index files, batches of its images, and the accuracy that is usual there.

    path/LOC_synset_mapping.txt                       n01440764 tench, Tinca tinca
    path/LOC_train_solution.csv                       n01440764_10026,n01440764 13 17 304 360: image, class, boxes
    path/ILSVRC/Data/CLS-LOC/{train/n01440764,val}/   n01440764_10026.JPEG
Boxes are not used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ag.autograd.operands import host_values, refuse_outside
from ag.autograd.tensor import TensorLike
from ag.data.dataloader import Batch
from ag.data.image_folder import ImageFolder, ImageList
from ag.engine.random import host_seed
from ag.engine.shape import counts
from ag.errors import DtypeError, ShapeError

__all__ = ["MEAN_AND_DEVIATION", "class_names", "minibatch", "topk_accuracy", "topk_hits", "train_solutions",
           "val_solutions"]

# Of the colours of ImageNet's training images, for `normalize` of `ag_image_folder`.
MEAN_AND_DEVIATION = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

_MAPPING, _HEADER = "LOC_synset_mapping.txt", "ImageId,PredictionString"
_IMAGES = Path("ILSVRC", "Data", "CLS-LOC")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # of an image or a class, which become names of files
_BOX = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def train_solutions(path: str | os.PathLike[str], classes: Sequence[str] | None = None) -> ImageList:
    """Read the list of training images and their classes, which `ag_image_folder` takes in the place of a folder.

    It has ``files``, ``ids`` and ``classes``.  A ValueError names a line that is wrong, or says that no image is left.
    Reference: ResNetImageNet.jl ``train_solutions``.

    Parameters
    ----------
    path : path
        The folder with ``LOC_synset_mapping.txt``, ``LOC_train_solution.csv`` and ``ILSVRC``.
    classes : sequence of str, optional
        Take only images of these classes, named as in the mapping (``n01440764``); class ids are their places in this
        sequence.  Default: all, in the order of the mapping.
    """
    return _solutions("train_solutions", path, "train", classes)


def val_solutions(path: str | os.PathLike[str], classes: Sequence[str] | None = None) -> ImageList:
    """Read the list of validation images and their classes; as `train_solutions`."""
    return _solutions("val_solutions", path, "val", classes)


def class_names(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the classes' English names, in the order of the mapping: ``{"n01440764": "tench, Tinca tinca", ...}``."""
    return _names("class_names", path)[1]


def _names(function: str, given: object) -> tuple[Path, dict[str, str]]:
    """Return the folder, and the name of each class in its mapping."""
    if not isinstance(given, (str, bytes, os.PathLike)):
        raise TypeError(f"{function}: path is a {type(given).__name__}; the name of a folder is required.")
    path = Path(os.fsdecode(given))
    names: dict[str, str] = {}
    file = path / _MAPPING
    for number, line in _lines(function, file):
        synset, _, name = line.partition(" ")
        if not _NAME.fullmatch(synset) or not name.strip():
            raise _wrong(function, file, number, f"it is {line!r:.60}; a class and its name are required, such as "
                                                 f"'n01440764 tench'")
        if synset in names:
            raise _wrong(function, file, number, f"class {synset} stands there for the second time; once is required")
        names[synset] = name.strip()
    if not names:
        raise ValueError(f"{function}: {file} is empty; a line for each class is required.")
    return path, names


def _solutions(function: str, given: object, part: str, classes: Sequence[str] | None) -> ImageList:
    path, known = _names(function, given)
    chosen = list(classes) if isinstance(classes, (Sequence, np.ndarray)) and not isinstance(classes, str) else []
    if classes is not None and not (chosen and all(isinstance(c, str) and c in known for c in chosen)
                                    and len(set(chosen)) == len(chosen)):
        raise ValueError(f"{function}: classes is {classes!r:.80}; a list of classes of {_MAPPING} is required, each "
                         f"once, such as {[*known][:2]}.")
    kept = tuple(known if classes is None else map(str, chosen))
    id_of = {synset: i for i, synset in enumerate(kept)}
    files, ids = list[Path](), list[int]()
    seen: dict[str, int] = {}
    index = path / f"LOC_{part}_solution.csv"
    lines = _lines(function, index)
    first = next(lines, (1, ""))
    if first[1] != _HEADER:
        raise _wrong(function, index, first[0], f"it is {first[1]!r:.60}; the header {_HEADER!r} is required")
    for number, line in lines:
        image, _, prediction = line.partition(",")
        synset, fault = _class_of(prediction, known)
        if not _NAME.fullmatch(image):
            fault = f"the image is {image!r:.60}; letters, digits, '_', '-' and '.' are required"
        elif image in seen:
            fault = f"image {image:.60} stands in line {seen[image]}, too; once is required"
        if fault:
            raise _wrong(function, index, number, fault)
        seen[image] = number
        if synset in id_of:
            folder = path / _IMAGES / part
            files.append((folder / synset if part == "train" else folder) / f"{image}.JPEG")
            ids.append(id_of[synset])
    if not files:
        raise ValueError(f"{function}: {index} has no image of the classes {', '.join(kept):.80}; one is required.")
    numbers = np.array(ids, np.int64)
    numbers.flags.writeable = False
    return ImageList(path, tuple(files), numbers, kept)


def _class_of(prediction: str, known: dict[str, str]) -> tuple[str, str]:
    """Return the class that a line names, and what is wrong with the line."""
    synset = (words := prediction.split() or [""])[0]
    if synset not in known:
        return "", f"the class is {synset!r:.60}, which {_MAPPING} does not have"
    boxes = [words[i : i + 5] for i in range(0, len(words), 5)] if len(words) > 1 else []
    for name, *corners in boxes:
        if name != synset or len(corners) != 4 or not all(map(_BOX.fullmatch, corners)):
            return "", f"it goes on with {' '.join((name, *corners))!r:.60}; {synset} and four numbers are required"
    return synset, ""


def _lines(function: str, file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not empty, with their numbers from 1."""
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise ValueError(f"{function}: {file} is no regular file; one with a line per class or image is required.")
    content = file.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _wrong(function, file, content[: error.start].count(b"\n") + 1, f"it is not UTF-8 ({error.reason}); "
                                                                             f"plain text is required") from error
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line.rstrip("\r").rstrip(" ")


def _wrong(function: str, file: Path, line: int, fault: str) -> ValueError:
    return ValueError(f"{function}: {file}, line {line}: {fault}.")


def minibatch(images: ImageList, nsamples: int = 16, size: int | tuple[int, int] = 224, *, seed: int | None = None,
              shorter_side: int | None = None, random_crop: bool = False, random_flip: bool = False,
              normalize: tuple[Sequence[float], Sequence[float]] | None = MEAN_AND_DEVIATION) -> Batch:
    """Draw a batch at random, none twice: images (3, height, width, nsamples), and class ids.

    Reference: ResNetImageNet.jl ``minibatch`` (whose targets are one-hot).

    Parameters
    ----------
    images : ImageList
        As `train_solutions` returns it.
    nsamples : int, optional
        At most as many as there are.
    size, seed, shorter_side, random_crop, random_flip, normalize : optional
        As for `ag_image_folder`.
    """
    if not isinstance(images, ImageList):
        raise TypeError(f"minibatch: images is a {type(images).__name__}; a list as of train_solutions is required.")
    if not counts(nsamples) or nsamples > len(images):
        raise ValueError(f"minibatch: nsamples is {nsamples!r} and there are {len(images)} images; a whole number from "
                         f"1 to {len(images)} is required.")
    return ImageFolder(images, size, int(nsamples), seed=host_seed() if seed is None else seed, prefetch=0,
                       shorter_side=shorter_side, random_crop=random_crop, random_flip=random_flip,
                       normalize=normalize).next_batch()


def topk_hits(out: TensorLike, ids: TensorLike, k: int = 1) -> int:
    """Count the samples that have their class among the `k` with the largest outputs; as `topk_accuracy`.

    Of equal outputs that of the lower class id comes first.  A sample with a NaN is no hit.

    Examples
    --------
    >>> ag.data.imagenet.topk_hits([[0.1, 0.9], [0.7, 0.1], [0.2, 0.0]], [1, 1])  # two samples, each a column
    1
    """
    return _hits("topk_hits", out, ids, k)[0]


def topk_accuracy(out: TensorLike, ids: TensorLike, k: int = 1, world: Any = None) -> float:
    """Return the share, from 0 to 1, of the samples that have their class among the `k` with the largest outputs.

    NaN if there are no samples.  Hits and samples are added up as whole numbers and divided once.
    Reference: Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks", 2012.

    Parameters
    ----------
    out : array_like of shape (classes, samples)
        Logits or probabilities.
    ids : array_like of shape (samples,)
    k : int, optional
    world : communicator, or something that has one as ``comm``, optional
        The ranks whose samples count together; each gives its own, which may be none, and all get the same number.

    Examples
    --------
    >>> [ag.data.imagenet.topk_accuracy([[0.1, 0.9], [0.7, 0.1], [0.2, 0.0]], [1, 1], k) for k in (1, 2)]
    [0.5, 1.0]
    """
    total = np.array(_hits("topk_accuracy", out, ids, k), np.int64)
    if world is not None:
        comm = getattr(world, "comm", world)
        if not hasattr(comm, "all_reduce"):
            raise TypeError(f"topk_accuracy: world is {world!r:.80}; a communicator, or what has one, is required.")
        comm.all_reduce(total)
    return float(total[0] / total[1]) if total[1] else float("nan")


def _hits(function: str, out: TensorLike, ids: TensorLike, k: int) -> tuple[int, int]:
    scores, right = (host_values(x, function) for x in (out, ids))
    if scores.ndim != 2 or right.size != scores.shape[1] or right.ndim < 1:
        raise ShapeError(f"{function}: out is {scores.shape} and ids {right.shape}; (classes, samples) and (samples,) "
                         f"are required.")
    if right.dtype.kind not in "iuf" or scores.dtype.kind not in "biuf" or (right != np.floor(right)).any():
        raise DtypeError(f"{function}: out is {scores.dtype} and ids {right.dtype}; give numbers and whole numbers.")
    refuse_outside(function, scores.shape[0], "class", "out has a row for each class", right)
    right = right.reshape(-1).astype(np.int64)
    if not counts(k) or k > scores.shape[0]:
        raise ValueError(f"{function}: k is {k!r} and out has {scores.shape[0]} classes; give 1 to {scores.shape[0]}.")
    own = scores[right, np.arange(right.size)]
    before = (scores > own).sum(0) + ((scores == own) & (np.arange(len(scores))[:, None] < right)).sum(0)
    return int(((before < k) & ~np.isnan(scores).any(0)).sum()), right.size
