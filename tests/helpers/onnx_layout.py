"""Lay arrays out as an ONNX file of `export_onnx` has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Array = np.ndarray[Any, Any]


def as_in_file(path: Path, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Lay arrays of this library, by the names of inputs or outputs, as a file has them: some with the batch first."""
    (found,) = pytest.importorskip("onnx").load(str(path)).metadata_props
    moved = json.loads(found.value)["batch_first"]
    return {name: np.ascontiguousarray(np.moveaxis(x, -1, 0)) if name in moved else x for name, x in arrays.items()}
