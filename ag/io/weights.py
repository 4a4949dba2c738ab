"""Load weights from another program's file into a model, by a map of names.

    PyTorch, safetensors        names={...}           here
    0.weight [8, 4]             "0.weight": "layer1_W"   layer1_W [8, 4]
    0.bias [8]                  "0.bias": "layer1_b"     layer1_b [8, 1], as vectors are columns here
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.errors import CheckpointError
from ag.io.model_file import check_arguments, tensors_of_file
from ag.io.safetensors_file import read_regular, read_tensors
from ag.nn.layer import Layer, Model, load_into, named_tensors, ties
from ag.nn.linear import Embedding
from ag.version import install_line

if TYPE_CHECKING:
    from onnx import TensorProto

Target = str | Sequence[str] | None  # whose tensor an array is: of one name, of several one after the other, of none
Names = Mapping[str, Target] | Callable[[str], Target]

_COUNTED = "num_batches_tracked"  # PyTorch's batch norms count batches, which changes nothing


def load_weights(model: Model, path: str | os.PathLike[str], names: Names | None = None) -> None:
    """Load weights that another program has written into a model; nothing changes if they do not fit.

    Reference: PyTorch ``load_state_dict``.

    Parameters
    ----------
    model : Layer, or any object with ``parameters()``
    path : path
        A safetensors file, such as of PyTorch's ``save_file(model.state_dict(), path)``, or an ONNX file, which ends in
        ``.onnx``; also a model file or checkpoint of this library.
    names : dict or callable, optional
        Each tensor's name in the model, as ``{"0.weight": "layer1_W"}`` or a function of the name in the file.  None
        leaves a tensor out; a list of names cuts it into as many equal parts along its first axis, as
        ``in_proj_weight`` into ``["W_q", "W_k", "W_v"]``.  A name that a dict lacks stays as it is.

    Raises
    ------
    CheckpointError
        If the file cannot be read, or names are missing, unexpected or of another shape; the message lists them with
        the nearest right ones.  Also if the model is one square embedding and `names` is not given.

    Notes
    -----
    Layouts are those of docs/interop.md: a vector becomes a column, the weight of PyTorch's embedding, [v, d], is
    transposed, and so is what `MatMul` or `Gemm` of an ONNX graph multiplies from the right.  Its single numbers and
    whole numbers, and ``num_batches_tracked``, are left out.  Of a tied tensor one name is enough.

    Without `names`, a file with the model's own names, ``layer1_W``, has this library's layout.

    Examples
    --------
    >>> import ag, numpy, os, tempfile, safetensors.numpy
    >>> path = os.path.join(tempfile.mkdtemp(), "theirs.safetensors")
    >>> theirs = {"fc.weight": numpy.ones((1, 2), "f"), "fc.bias": numpy.ones(1, "f")}
    >>> safetensors.numpy.save_file(theirs, path)
    >>> model = ag.ag_linear(2, 1)
    >>> ag.load_weights(model, path, {"fc.weight": "W", "fc.bias": "b"})
    >>> model.b.numpy().tolist()
    [[1.0]]
    """
    if not (names is None or isinstance(names, Mapping) or callable(names)):
        raise TypeError(f"load_weights: names is a {type(names).__name__}; a dict from the file's names to the model's "
                        f"is required, or a function of the file's names.")
    check_arguments("load_weights(model, path)", path, model)
    where = f"load_weights: {os.fsdecode(path)}"
    mine = named_tensors(model)
    if os.fsdecode(path).endswith(".onnx"):
        theirs, columns, turned = initializers(path, "load_weights")
    else:
        header, arrays = read_tensors(path, "load_weights")
        theirs, is_ours = tensors_of_file(header, arrays)
        is_ours = is_ours or (names is None and _names_are_ours(theirs, mine, where))
        columns, turned = set(theirs) if is_ours else set(), set()
    words = _words(model)
    state: dict[str, Array] = {}
    origin: dict[str, str] = {}
    wrong: list[str] = []
    for name, array in theirs.items():
        for target, part in _parts(where, name, array, _target(names, name, mine)):
            if target in origin:
                raise CheckpointError(f"{where} does not fit this model: {origin[target]} and {name} are both called "
                                      f"{target}; give each tensor of the model once.")
            origin[target] = name
            if target in mine:
                is_turned = name not in columns if target in words else name in turned
                state[target] = _as_here(part, mine[target].shape, is_turned)
                if state[target].shape != mine[target].shape:
                    wrong.append(f"{_both(name, target)} is {state[target].shape} instead of {mine[target].shape}" + (
                        _of_words(is_turned) if target in words else ""))
    tied = ties(mine)
    given = {tied.get(name, name) for name in state}
    missing = [name for name in mine if tied.get(name, name) not in given]
    strange = {target: name for target, name in origin.items() if target not in mine}
    shapes = {name: array.shape for name, array in theirs.items() if name in strange.values()}
    wrong[:0] = [f"missing {name}{_nearest(name, mine[name].shape, shapes)}" for name in missing]
    wrong += [f"unexpected {_both(name, target)}" for target, name in strange.items()]
    if wrong:
        raise CheckpointError(f"{where} does not fit this model: {', '.join(wrong)}. Give "
                              f"names={{name in the file: name in the model}}.")
    load_into(mine, state, source=where)


def _target(names: Names | None, name: str, mine: Mapping[str, Tensor]) -> Target:
    """Return the name, or names, in the model for an array of the file."""
    found: Target = name
    if names is None:
        pass
    elif isinstance(names, Mapping):
        found = names.get(name, name)
    else:
        found = names(name)
    return None if found == name and name.endswith(_COUNTED) and name not in mine else found


def _parts(where: str, name: str, array: Array, target: Target) -> list[tuple[str, Array]]:
    """Return an array, or its parts, with their names in the model."""
    if target is None:
        return []
    if isinstance(target, str):
        return [(target, array)]
    if not isinstance(target, (list, tuple)) or not all(isinstance(x, str) for x in target):
        raise TypeError(f"load_weights: names gives {target!r:.60} for {name}; a name in the model is required, a list "
                        f"of names, or None.")
    if not array.ndim or not target or array.shape[0] % len(target):
        raise CheckpointError(f"{where}: {name} is {array.shape} and is to become {len(target)} tensors; its first "
                              f"size must divide into as many.")
    return list(zip(target, np.split(array, len(target)), strict=True))


def _names_are_ours(theirs: Mapping[str, Array], mine: Mapping[str, Tensor], where: str) -> bool:
    """Return whether the file has the model's names, and so its layout.

    PyTorch's names have dots; only a single embedding is called alike here and there.
    """
    if set(theirs) == {"weight"} == set(mine):
        shape, here = theirs["weight"].shape, mine["weight"].shape
        if shape == here == here[::-1]:
            raise CheckpointError(f"{where}: weight is {shape}, and nobody knows whether its rows are words, as in "
                                  f"PyTorch, or its columns, as here; give names={{'weight': 'weight'}} if it is "
                                  f"PyTorch's, or call model.load_state_dict.")
        return shape == here
    return set(theirs) <= set(mine)


def _of_words(is_turned: bool) -> str:
    return (", after it was transposed, as rows of other programs' embeddings are words" if is_turned else
            ", and was not transposed, as the file's names are the model's; give names if its rows are words")


def _words(model: object) -> set[str]:
    """Return the names of the tensors that have a word in each column."""
    return {f"{prefix}_weight" if prefix else "weight" for prefix, layer in model.modules()
            if isinstance(layer, Embedding)} if isinstance(model, Layer) else set()


def _as_here(array: Array, shape: tuple[int, ...], is_turned: bool) -> Array:
    """Return an array in this library's layout."""
    if is_turned and array.ndim == 2:
        return array.T
    return array.reshape(-1, 1) if array.ndim == 1 and shape == (array.size, 1) else array


def _both(name: str, target: str) -> str:
    return name if name == target else f"{target} ({name} in the file)"


def _nearest(name: str, shape: tuple[int, ...], free: Mapping[str, tuple[int, ...]]) -> str:
    """Name the tensor of the file that is probably meant: of the shape, and most like it by its name."""
    from difflib import get_close_matches  # which takes time to load, and wrong names are rare

    plain = {other.replace(".", "_").lower(): other for other in free}
    like = [plain[x] for x in get_close_matches(name.lower(), plain, n=3, cutoff=0.7)]
    sizes = sorted(n for n in shape if n > 1)
    fits = [other for other, theirs in free.items() if sorted(n for n in theirs if n > 1) == sizes]
    near = [other for other in like if other in fits] + fits + like
    return f" (the file has {near[0]} of shape {free[near[0]]})" if near else ""


def onnx_package(function: str) -> None:
    """Load the package, or say how to get it."""
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{function}: the package onnx cannot be loaded ({error}); {install_line('onnx')} installs "
                          f"it.") from error


def initializers(path: str | os.PathLike[str], function: str) -> tuple[dict[str, Array], set[str], set[str]]:
    """Return the arrays by name, the names of those with words as columns, and of those to be transposed.

        MatMul(x, W), Gemm(x, W)              W is multiplied from the right: its columns are the features
        MatMul(W, x), Gemm(x, W, transB=1)    its rows are the features, as here
        Gather(W, ids, axis=1)                a word is a column, as here; by axis=0 a row

    Single numbers and whole numbers, such as factors and axes, are no weights and left out.  A file that cannot be read
    is a CheckpointError.
    """
    onnx_package(function)
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    where = f"{function}: {os.fsdecode(path)}"
    try:
        graph = ModelProto.FromString(read_regular(path)).graph
        arrays: dict[str, Array] = {}
        for x in graph.initializer:
            if not isinstance(x.name, str) or x.name in arrays:  # bytes where they are no UTF-8
                raise ValueError(f"it has {x.name!r:.60} as the name of an initializer, or has it twice")
            arrays[x.name] = _array(x, os.path.dirname(os.fsdecode(path)))
    except (OSError, DecodeError, TypeError, ValueError, KeyError, OverflowError, AttributeError, MemoryError) as error:
        raise CheckpointError(f"{where} cannot be read ({str(error).rstrip('.')}); a complete ONNX file is "
                              f"required, with the files of its external data in the same folder.") from error
    arrays = {name: x for name, x in arrays.items() if x.ndim and x.dtype.kind == "f"}
    columns: set[str] = set()
    right: set[str] = set()
    left: set[str] = set()
    for node in graph.node:
        numbers = {a.name: a.i for a in node.attribute}
        used = [*node.input, "", ""]
        if node.op_type == "Gather" and numbers.get("axis", 0) == 1:
            columns.add(used[0])
        elif node.op_type in ("MatMul", "Gemm"):
            (left if numbers.get("transA", 0) == 0 else right).add(used[0])
            (right if numbers.get("transB", 0) == 0 else left).add(used[1])
    both = sorted(right & left & set(arrays))
    if both:
        raise CheckpointError(f"{where} multiplies {both[0]} from both sides, so it is not known which of its axes are "
                              f"features; give the arrays to load_state_dict.")
    return arrays, columns, right


def _array(x: TensorProto, folder: str) -> Array:
    """Return the values of an initializer, those of bfloat16 as float32."""
    from onnx import TensorProto, helper, numpy_helper

    if x.data_location == TensorProto.EXTERNAL:
        most = prod(x.dims) * helper.tensor_dtype_to_np_dtype(x.data_type).itemsize
        x.raw_data = _external(x.name, {entry.key: entry.value for entry in x.external_data}, folder, most)
        x.data_location = TensorProto.DEFAULT
    array = numpy_helper.to_array(x)
    return array.astype(np.float32) if x.data_type == TensorProto.BFLOAT16 else array


def _external(name: str, entry: dict[str, str], folder: str, most: int) -> bytes:
    """Return the bytes of an initializer, at most so many, that lie in a file in or below the same folder."""
    location = entry.get("location", "")
    path = os.path.join(folder, location)
    if not location or os.path.isabs(location) or os.path.realpath(folder) != os.path.commonpath(
            [os.path.realpath(folder), os.path.realpath(path)]):
        raise ValueError(f"{name!r:.60} lies in {location!r:.60}, which is not in the folder of the file")
    start, size = (int(entry[key]) if key in entry else None for key in ("offset", "length"))
    if min(start or 0, size or 0, most) < 0 or (size or 0) > most:
        raise ValueError(f"{name!r:.60} has a part of {location!r:.60} that begins at {start} with {size} bytes")
    return read_regular(path, start or 0, min(max(0, os.path.getsize(path) - (start or 0)), most) if size is None
                        else size)
