"""Writes the reference of the public names, from their docstrings, as HTML into a folder. Every warning is an error.

`make docs` calls it; tests/docs/test_reference.py looks at what it wrote.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from pathlib import Path

import pdoc

import ag
from ag.autograd.tensor import OPS


def write(folder: Path) -> None:
    for op in OPS.values():  # their signatures say "Tensor", a name that pdoc looks for where the op is defined
        op.__signature__ = inspect.signature(op).replace(return_annotation=ag.Tensor)
    for name in ag.__all__:
        public = getattr(ag, name)
        if inspect.isclass(public):
            public.__qualname__ = name  # pdoc takes `ag_linear = Linear` for a variable
    pdoc.render.configure(docformat="numpy", show_source=False)  # the source of an op is that of all ops
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pdoc.pdoc("ag", output_directory=folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
