"""Compiled forms of hot paths: one extension module of the C files here, each of which names its reference in Python.

`code` is that module; None where there was no compiler, or with ``AG_NATIVE=0``: then the references run.
Other values are refused when a device is opened, as `python -m ag doctor` must start to name them.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

try:
    code: Any = import_module("ag.native._code") if os.environ.get("AG_NATIVE") != "0" else None
except ImportError:  # there was no compiler
    code = None
