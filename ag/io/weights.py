"""Load weights from another program's file into a model, by names; transpose them where the file says how they lie."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

import numpy as np

from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.errors import CheckpointError
from ag.io.checkpoint import check_arguments, tensors_of_file, unwrapped
from ag.io.safetensors_file import read_regular, read_tensors
from ag.nn.layer import Layer, Model, load_into, named_tensors, ties
from ag.nn.linear import Embedding
from ag.nn.sequential import Sequential

Target = str | Sequence[str] | None  # whose tensor an array is: of one name, of several one after the other, of none
Names = Mapping[str, Target] | Callable[[str], Target]

_COUNTED = "num_batches_tracked"  # PyTorch's batch norms count batches, which changes nothing
_USUAL = ("model.safetensors", "model.safetensors.index.json")  # what a folder of Hugging Face has, the first first
_WRITE = "PyTorch writes one by safetensors.torch.save_file(model.state_dict(), path)."
_SHOWN = 4  # rows of each kind that a message has
_LEAVES = {"W": "weight", "b": "bias", "gamma": "weight", "beta": "bias"}  # what PyTorch calls a layer's tensors


def load_weights(model: Model, path: str | os.PathLike[str], names: Names | None = None, strict: bool = True
                 ) -> str | None:
    """Load weights that another program has written into a model; nothing changes if they do not fit.

    Reference: PyTorch ``load_state_dict``.

    Parameters
    ----------
    model : Layer, or any object with ``parameters()``
    path : path
        A safetensors file, such as of PyTorch's ``save_file(model.state_dict(), path)``; the index of its shards,
        ``model.safetensors.index.json``, or the folder of either; an ONNX file, which ends in ``.onnx``; or ag's own.
    names : dict or callable, optional
        Each tensor's name in the model, as ``{"fc.weight": "layer1_W"}``, or a function of the name in the file, as
        ``ag.io.layouts.gpt2``.  ``"layer1_W.T"`` transposes the matrix.  None leaves a tensor out; a list of names, as
        ``["W_q", "W_k", "W_v"]``, cuts it into as many equal parts along its first axis.  Names that a dict lacks stay.
    strict : bool, optional
        Whether every name must occur on both sides.  Without it what is there is loaded, as of an adapter.

    Returns
    -------
    str or None
        Without `strict`, the table of what is missing and unexpected; None if all names occur on both sides.

    Raises
    ------
    CheckpointError
        If the file cannot be read, or names are missing, unexpected or of another shape; a table lists them.  Also if
        nothing tells whether a square matrix is transposed: give ``"W.T"``, or ``"W.T.T"`` where it lies as here.

    Notes
    -----
    Names of PyTorch are known here: ``h.0.ln_1.weight`` is ``h1_ln_1_gamma``, the first of the list ``h``.  A sequence
    has such names with `strict` only.  Of a tied tensor one name is enough.

    Layouts are those of docs/interop.md: a vector becomes a column, the weight of PyTorch's embedding, [v, d], is
    transposed, and so is what `MatMul` or `Gemm` of an ONNX graph multiplies from the right.  Its single numbers and
    whole numbers, and ``num_batches_tracked``, are left out.  Without `names`, a tensor with the model's own name,
    ``layer1_W``, has this library's layout.

    Examples
    --------
    >>> import ag, numpy, tempfile, safetensors.numpy
    >>> path, model = tempfile.mkdtemp() + "/theirs.safetensors", ag.ag_linear(2, 1)
    >>> safetensors.numpy.save_file({"fc.weight": numpy.ones((1, 2)), "fc.bias": numpy.ones(1)}, path)
    >>> ag.load_weights(model, path, lambda name: name.removeprefix("fc."))
    >>> model.b.numpy().tolist()
    [[1.0]]
    """
    if not (names is None or isinstance(names, Mapping) or callable(names)):
        raise TypeError(f"load_weights: names is a {type(names).__name__}; a dict from the file's names to the model's "
                        f"is required, or a function of the file's names.")
    model = unwrapped(model)
    check_arguments("load_weights(model, path)", path, model)
    where = f"load_weights: {os.fsdecode(path)}"
    mine, words = named_tensors(model), _words(model)
    file = _read(path, names, mine, words, where)
    lost = sorted(names.keys() - file.arrays.keys()) if strict and isinstance(names, Mapping) else []
    if lost:
        raise CheckpointError(f"{where}: names has {lost[0]!r:.80}, which the file has not"
                              f"{_nearest([lost[0]], file.arrays)}; give names of the file, or strict=False.")
    dotted = _dotted(model, mine, strict)
    parts = [part for name, array in sorted(file.arrays.items())
             for part in _parts(where, name, array, names, mine, dotted)]
    origin: dict[str, str] = {}
    for part in parts:
        if part.target in origin:
            raise CheckpointError(f"{where} does not fit this model: {origin[part.target]} and {part.name} are both "
                                  f"called {part.target}; give each tensor of the model once.")
        origin[part.target] = part.name
    state, unlike = _laid([part for part in parts if part.target in mine], file, mine, words)
    tied = ties(mine)
    given = {tied.get(name, name) for name in state}
    missing = [name for name in mine if tied.get(name, name) not in given]
    strange = {target: name for target, name in origin.items() if target not in mine}
    free = {name: file.arrays[name] for name in strange.values()}
    near = {name: _nearest([name, *(x for x, own in dotted.items() if own == name)], free) for name in missing[:_SHOWN]}
    table = _table({"missing": [f"{name}{near.get(name, '')}" for name in missing],
                    "unexpected": [_both(name, target) for target, name in strange.items()], "": unlike})
    if unlike or (table and (strict or not state)):
        raise CheckpointError(f"{where} does not fit this model, and nothing was changed:\n{table}\nGive "
                              f"names={{name in the file: name in the model}}, with '.T' behind it to transpose.")
    load_into(mine, state, strict, source=where)
    return table or None


class _File(NamedTuple):
    """Arrays of a file by name, and the names of those that lie as here, that lie turned, and of which it is known."""

    arrays: dict[str, Array]
    columns: set[str]
    turned: set[str]
    known: set[str]


def _read(path: str | os.PathLike[str], names: Names | None, mine: Mapping[str, Tensor], words: set[str], where: str
          ) -> _File:
    if os.fsdecode(path).endswith(".onnx"):
        from ag.io.onnx.read import initializers  # which takes time to load

        arrays, columns, turned = initializers(path, "load_weights")
        return _File(arrays, columns, turned, set(arrays))
    arrays, is_ours = tensors_of_file(*_safetensors(os.fsdecode(path)))
    ours = set(arrays) if is_ours else set() if names is not None else _names_of_ours(arrays, mine, words, where)
    return _File(arrays, ours, set(), ours)


def _safetensors(name: str) -> tuple[dict[str, str], dict[str, Array]]:
    """Return header and arrays of a file, of the one in a folder, or of all shards of an index."""
    if os.path.isdir(name):
        files = sorted(os.listdir(name))
        found = [x for x in _USUAL if x in files][:1] or [x for x in files if x.endswith(".safetensors")]
        if len(found) != 1:
            pickles = [f"{x}, which is a pickle" for x in files if x.endswith((".bin", ".pt", ".pth"))]
            there = f"{len(found)} of them" if found else [*pickles, "none"][0]
            _refuse(name, f"it is a folder with {there}",
                    f"a folder with one safetensors file, or with {_USUAL[1]}, is required. {_WRITE}")
        name = os.path.join(name, found[0])
    return ({}, _shards(name)) if name.endswith(".index.json") else _one_file(name)


def _refuse(name: str, what: str, instead: str, error: Exception | None = None) -> NoReturn:
    raise CheckpointError(f"load_weights: {name} cannot be read ({what}); {instead}") from error


def _one_file(name: str) -> tuple[dict[str, str], dict[str, Array]]:
    """Return header and arrays of one file; say of well-known other ones what they are."""
    try:
        return read_tensors(name, "load_weights", f"a safetensors file is required, or one of ONNX that ends in "
                            f".onnx. {_WRITE}")
    except CheckpointError as error:
        head, required = b"", "a safetensors file is required."
        with suppress(OSError):
            head = read_regular(name, 0, 4)
        if not os.path.lexists(name):
            model = "MODEL" if os.path.splitext(name)[1] else name
            _refuse(name, "there is no such file", f"{required} Names of a hub are not looked up: download the file, "
                    f"as by `hf download {model} model.safetensors`, and give its path. {_WRITE}", error)
        if head == b"PK\3\4" or head[:1] == b"\x80":
            _refuse(name, "it is a pickle, which runs code when it is read", f"{required} Convert it once where "
                    f"PyTorch is: safetensors.torch.save_file(torch.load({os.path.basename(name)!r}, "
                    f"weights_only=True), \"model.safetensors\").", error)
        if head == b"GGUF":
            _refuse(name, "it is a GGUF file", f"{required} Give the one that it was made of.", error)
        raise


def _shards(index: str) -> dict[str, Array]:
    """Return the arrays of all shards, as {"weight_map": {"h.0.ln_1.weight": "model-00001-of-00002.safetensors"}}."""
    try:
        files = dict(json.loads(read_regular(index))["weight_map"])
        if not files or not all(isinstance(x, str) and x == os.path.basename(x) != "" for x in files.values()):
            raise ValueError("its weight_map does not name files beside it")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        _refuse(index, str(error).rstrip("."), "an index with a weight_map from names to files is required.", error)
    folder, shards = os.path.dirname(index), sorted(set(files.values()))
    gone = [x for x in shards if not os.path.exists(os.path.join(folder, x))]
    if gone:
        _refuse(index, f"{len(gone)} of its {len(shards)} shards are missing, such as {gone[0]}",
                "all are required. Put them beside the index.")
    arrays: dict[str, Array] = {}
    for shard in shards:
        _, found = _one_file(os.path.join(folder, shard))
        lost = [name for name, x in files.items() if x == shard and name not in found]
        twice = sorted(arrays.keys() & found.keys())
        if lost or twice:
            what = f"{shard} lacks {lost[0]}" if lost else f"{twice[0]} is in {shard} and another shard"
            _refuse(index, what, "the shards of one model are required. Download them again.")
        arrays |= found
    return arrays


def _names_of_ours(theirs: Mapping[str, Array], mine: Mapping[str, Tensor], words: set[str], where: str) -> set[str]:
    """Return the names in the file that are the model's own, with its layout: PyTorch's have dots, or are one word."""
    # where the file has both, the shape of an embedding says which axis is which, and a square one is refused
    own = theirs.keys() & mine.keys()
    if own != {"weight"} and not any("." in name for name in theirs.keys() - own):
        return own
    fits = {name for name in own & words if theirs[name].shape == mine[name].shape}
    for name in sorted(fits):
        if _is_square(theirs[name]):
            raise CheckpointError(f"{where}: {name} is {theirs[name].shape}, and nobody knows whether its rows are "
                                  f"words, as in PyTorch, or its columns, as here; give names={{{name!r}: "
                                  f"'{name}.T'}} if they are rows, or '{name}.T.T'.")
    return fits


class _Part(NamedTuple):
    """An array of the file, or a part of one: its name there, its name here, how often `.T` turns it."""

    name: str
    target: str
    array: Array
    turns: int

    def __str__(self) -> str:
        return _both(self.name, self.target)


def _parts(where: str, name: str, array: Array, names: Names | None, mine: Mapping[str, Tensor],
           dotted: Mapping[str, str]) -> list[_Part]:
    """Return an array, or its parts, with their names in the model."""
    target: Target = name
    if names is not None:
        target = names.get(name, name) if isinstance(names, Mapping) else names(name)
    if target is None or (target == name and name.endswith(_COUNTED) and name not in mine):
        return []
    targets = [target] if isinstance(target, str) else target
    if not isinstance(targets, (list, tuple)) or not all(isinstance(x, str) for x in targets):
        raise TypeError(f"load_weights: names gives {target!r:.60} for {name}; a name in the model is required, a list "
                        f"of names, or None.")
    plain = [x if x in mine else re.sub(r"(\.T)+$", "", x) for x in targets]
    turns = {(len(x) - len(own)) // len(".T") for x, own in zip(targets, plain, strict=True)}
    if len(turns) > 1 or (turns != {0} and array.ndim > 2):
        raise CheckpointError(f"{where}: {name} is {array.shape} and is to become {', '.join(targets)}; '.T' is for "
                              f"matrices, and behind each name of a list or none. Write it so.")
    turned = sum(turns)
    whole = array.T if turned % 2 else array
    if not targets or (len(targets) > 1 and (not whole.ndim or whole.shape[0] % len(targets))):
        raise CheckpointError(f"{where}: {name} is {whole.shape} and is to become {len(targets)} tensors; its first "
                              f"size must divide into as many.")
    pieces = [whole] if len(targets) == 1 else np.split(whole, len(targets))
    return [_Part(name, own if own in mine else dotted.get(own, own), piece, turned)
            for own, piece in zip(plain, pieces, strict=True)]


def _laid(parts: Sequence[_Part], file: _File, mine: Mapping[str, Tensor], words: set[str]
          ) -> tuple[dict[str, Array], list[str]]:
    """Return the arrays as they lie here, and what is wrong with those that do not fit, or may fit another way."""
    state: dict[str, Array] = {}
    wrong: list[str] = []
    turned, square = [], []  # those that fit transposed only, and both ways
    for part in parts:
        is_words, array, shape = part.target in words, part.array, mine[part.target].shape
        is_matrix, is_unknown = array.ndim == 2, not is_words and part.name not in file.known
        is_turned = not part.turns and (part.name not in file.columns if is_words else part.name in file.turned)
        if is_unknown and _is_square(array):
            square += [part] if not part.turns else []
        elif is_unknown and is_matrix and (part.turns % 2 if array.shape == shape else _fits_turned(array, shape)):
            turned.append(part.target)
        if is_turned and is_matrix:
            array = array.T
        elif shape == (array.size, 1) and array.ndim == 1:
            array = array.reshape(shape)
        state[part.target] = array
        if array.shape != shape:
            hint = f"; '{part.target}.T' fits" if _fits_turned(array, shape) else ""
            if is_words:
                hint = ", after it was transposed, as rows of other programs' embeddings are words" if is_turned else (
                    ", and was not transposed, as the file's names are the model's; give names if its rows are words")
            wrong.append(f"{part} is {array.shape} instead of {shape}{hint}")
    wrong += [f"{part} is {part.array.shape}, which fits both ways, and {turned[0]} fits transposed only; "
              f"'{part.target}.T' transposes it, '{part.target}.T.T' does not" for part in square if turned]
    return state, wrong


def _is_square(array: Array) -> bool:
    return array.ndim == 2 and array.shape[0] == array.shape[1] > 1


def _fits_turned(array: Array, shape: tuple[int, ...]) -> bool:
    return array.ndim == 2 and array.shape != shape == array.shape[::-1] and 1 not in shape


def _table(rows: Mapping[str, Sequence[str]]) -> str:
    """Return the first rows of each kind as lines, and how many more there are."""
    lines = [f"  {kind} {row}" if kind else f"  {row}" for kind, found in rows.items() for row in found[:_SHOWN]]
    more = [f"{len(found) - _SHOWN} more {kind}".rstrip() for kind, found in rows.items() if len(found) > _SHOWN]
    return "\n".join([*lines, *([f"  and {', '.join(more)}"] if more else [])])


def _dotted(model: object, mine: Mapping[str, Tensor], of_sequences: bool) -> dict[str, str]:
    """Return the model's names by those that PyTorch has: with dots, and lists counted from 0."""
    found: dict[str, set[str]] = {}
    todo: list[tuple[str, str, str, object]] = [("", "", "", model)]
    while todo:
        dot, name, leaf, x = todo.pop()
        if isinstance(x, Tensor):
            for last in {leaf, _LEAVES.get(leaf, leaf)}:
                found.setdefault(f"{dot.removesuffix(leaf)}{last}", set()).add(name)
        elif isinstance(x, Sequential):
            todo += [(f"{dot}.{i}", f"{name}_layer{i + 1}", "", y) for i, y in enumerate(x) if of_sequences]
        elif isinstance(x, (list, tuple)):
            todo += [(f"{dot}.{i}", f"{name}{i + 1}", "", y) for i, y in enumerate(x)]
        elif isinstance(x, dict):
            todo += [(f"{dot}.{key}", f"{name}_{key}", "", y) for key, y in x.items()]
        elif isinstance(x, Layer):
            todo += [(f"{dot}.{own}", f"{name}_{own}", own, y) for own, y in vars(x).items() if own[:1] != "_"]
    return {dot[1:]: own[1:] for dot, names in found.items() for own in names if len(names) == 1 and own[1:] in mine}


def _words(model: object) -> set[str]:
    """Return the names of the tensors that have a word in each column."""
    return {f"{prefix}_weight" if prefix else "weight" for prefix, layer in model.modules()
            if isinstance(layer, Embedding)} if isinstance(model, Layer) else set()


def _both(name: str, target: str) -> str:
    return name if name == target else f"{target} ({name} in the file)"


def _nearest(called: Sequence[str], free: Mapping[str, Array]) -> str:
    """Name the tensor of the file whose name is most like those of a missing one."""
    from difflib import get_close_matches  # which takes time to load, and wrong names are rare

    near = [other for other in free for name in called[1:] if other.endswith(f".{name}")]
    plain = {other.replace(".", "_").lower(): other for other in free}
    for name in called if not near else ():
        near += [plain[x] for x in get_close_matches(name.replace(".", "_").lower(), plain, n=1, cutoff=0.75)]
    return f" (the file has {near[0]} of shape {free[near[0]].shape})" if near else ""
