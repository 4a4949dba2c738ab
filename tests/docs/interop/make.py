"""Write the files beside it anew, with PyTorch: ``python tests/docs/interop/make.py``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from test_interop import SECTIONS, blocks, result_of, run_page, written_by  # noqa: E402 - from the folder above

with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    left = run_page(with_torch=True)
    for title, text in SECTIONS:
        for library, code in blocks(text):
            for name in written_by(code) if library == "torch" else []:
                shutil.copy(name, HERE)
                result = {key: np.ascontiguousarray(value) for key, value in left[title]["torch"].items()}
                safetensors.numpy.save_file(result, result_of(name))
    os.chdir(HERE)
