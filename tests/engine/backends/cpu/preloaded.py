"""A plugin of pytest, ``-p engine.backends.cpu.preloaded``: `ag` imports the hot paths in AG_TEST_HELPERS."""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

NAME = "ag.native._code"
spec = spec_from_file_location(NAME, Path(os.environ["AG_TEST_HELPERS"], "_code.so"))
assert spec is not None and spec.loader is not None
sys.modules[NAME] = module = module_from_spec(spec)
spec.loader.exec_module(module)
