"""Writes the reference of the public names, from their docstrings, as HTML into a folder. Every warning is an error.

`make docs` calls it; tests/docs/test_reference.py looks at what it wrote.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pdoc

import ag
from ag.autograd.tensor import Tensor, TensorLike
from ag.autograd.tensor_operators import OPS


def write(folder: Path) -> None:
    for op in OPS.values():  # their signatures name types that pdoc looks for where the op is defined
        vars(sys.modules[op.__module__]).update(Tensor=Tensor, TensorLike=TensorLike, Sequence=Sequence)
    ag.Batch.__new__.__annotations__.update(x=Tensor, y=Any)  # which a named tuple leaves unread
    for name in ag.__all__:
        public = getattr(ag, name)
        if inspect.isclass(public):
            public.__qualname__ = name  # pdoc takes `ag_linear = Linear` for a variable
    pdoc.render.configure(docformat="numpy", show_source=False)  # the source of an op is that of all ops
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Cannot determine where .* is taken from")  # of attributes that are annotated
        pdoc.pdoc("ag", output_directory=folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
