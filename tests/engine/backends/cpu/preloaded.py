"""A plugin for pytest: the compiled helpers of a folder are those that `ag` imports.

``PYTHONPATH=tests python -m pytest -p engine.backends.cpu.preloaded FILES`` with ``AG_TEST_HELPERS`` the folder.
`test_sanitizers.py` calls it, whose helpers were compiled with a sanitizer.
"""

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
