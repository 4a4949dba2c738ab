"""A plugin of pytest, ``-p engine.backends.cpu.preloaded``: `ag` imports the helpers of the folder AG_TEST_HELPERS."""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

for file in Path(os.environ["AG_TEST_HELPERS"]).glob("*.so"):
    name = file.name.partition(".so")[0]
    spec = spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
