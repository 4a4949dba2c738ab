"""Compiled forms of hot paths: one extension module of the C files here, each of which names its reference in Python.

`code` is that module; None where there was no compiler, or with ``AG_NATIVE=0``: then the references run.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ag.errors import switched_on

try:
    code: Any = import_module("ag.native._code") if switched_on("AG_NATIVE", default=True) else None
except ImportError:  # there was no compiler
    code = None
