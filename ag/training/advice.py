"""Advice of `fit` on data and devices that are likely not meant: in the log once, or in an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np

from ag.engine.device import cards, is_accelerator, was_named
from ag.engine.registry import say_once
from ag.errors import ShapeError

_LOOKED_AT, _FAR = 1000, 1e3  # samples; how far apart the scales of features may be, and how large one
_INNER = ("dp_train: ", "ag_dataloader: ")  # functions that `fit` calls


@contextmanager
def in_the_name_of(function: str, given: object) -> Iterator[None]:
    """Let errors of inner functions begin with the one that was called, and say how images have to be given."""
    try:
        yield
    except Exception as error:
        said = next((x for x in error.args[:1] if isinstance(x, str)), "")
        if said.startswith(_INNER):
            error.args = (f"{function}: {said.partition(': ')[2]}", *error.args[1:])
        for i, note in enumerate(notes := getattr(error, "__notes__", [])):
            notes[i] = f"{function}: {note.partition(': ')[2]}" if note.startswith(_INNER) else note
        of_images = isinstance(error, ShapeError) and ("conv" in said or "pool" in said)
        if of_images and (hint := _of_images(tuple(getattr(given, "shape", ())))):
            raise ShapeError(f"{function}: {hint} ({said.rstrip('.')}.)") from error
        raise


def _of_images(shape: Sequence[int]) -> str:
    """Return how to give images of this shape, if it is an unusual one."""
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[-1] > 4):
        return ""
    write = "X[:, None]" if len(shape) == 3 else "np.moveaxis(X, -1, 1)"
    return f"X is {shape}: images are given as (n, channels, height, width); write {write}."


def tell_of_devices(function: str, device: str, of_64_bits: bool) -> None:
    """Log once if there are cards that the training does not use, though nobody named a device."""
    there = [] if was_named() else cards()
    if of_64_bits:
        if any(map(is_accelerator, there)):
            say_once(f"{function}: the training is on {device}, as the model is in float64, which cards do not hold; "
                     f"make it in float32 for {there[0]}, under ag.ag_dtype('f32').")
    elif there and device not in there:
        say_once(f"{function}: the training is on {device}, where the model is, and {there[0]} is there; write devices="
                 f"{there[:1]}, or ag.ag_device('auto') before the model is made.")
    elif len(there) > 1:
        say_once(f"{function}: the training is on {device} alone; devices={there} uses all.")


def tell_of_binary(function: str, targets: object) -> None:
    """Log once if floats that are all 0 or 1 are trained by mean squares."""
    some = targets[..., :_LOOKED_AT] if isinstance(targets, np.ndarray) else np.zeros(0)
    if some.dtype.kind == "f" and some.size > 1 and np.isin(some, (0, 1)).all():
        say_once(f"{function}: the targets are 0.0 and 1.0, and the loss is the mean squared error. For classes write "
                 f"loss='bce_with_logits', or give whole numbers and a model with an output for each class.")


def tell_of_scales(function: str, given: object) -> None:
    """Log once if features in an array of floats have scales that networks train badly with."""
    columns = list(getattr(given, "columns", ()))
    is_table = getattr(given, "ndim", 0) == 2
    x = np.asarray(cast(Sequence[object], given)[:_LOOKED_AT]) if is_table else np.zeros(0)
    if x.dtype.kind != "f" or not x.size:
        return
    with np.errstate(all="ignore"):
        sizes = np.nanmax(np.abs(np.where(np.isfinite(x), x, 0)), 0)
    largest, least = int(sizes.argmax()), int(np.where(sizes > 0, sizes, np.inf).argmin())
    if sizes[largest] > _FAR or sizes[largest] > _FAR * sizes[least]:
        name = f" ({columns[largest]!r})" if columns else ""
        say_once(f"{function}: features have very different scales, or large ones: column {largest}{name} of X reaches "
                 f"{sizes[largest]:.0e}, column {least} {sizes[least]:.0e}. Networks train badly so; use "
                 f"sklearn.preprocessing.StandardScaler, or divide.")
