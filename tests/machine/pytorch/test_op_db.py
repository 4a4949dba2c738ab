"""ag's ops on PyTorch's own samples: values, gradients, and inputs that must be refused; skipped without PyTorch.

python -m venv --system-site-packages /tmp/torch && /tmp/torch/bin/pip install torch expecttest
PYTHONPATH=.:.venv/lib/python3.11/site-packages /tmp/torch/bin/python -m pytest tests/machine/pytorch/test_op_db.py
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("expecttest") is None:
    pytest.skip("PyTorch is not installed; the head of this file has the command", allow_module_level=True)

from machine.pytorch.op_db import compare_op, shared_ops

OPS = {op.formatted_name: op for op in shared_ops()}
QUICK = ["mul", "matmul", "sum", "softmax", "nn_functional_conv2d", "nn_functional_layer_norm",
         "nn_functional_rms_norm", "nn_functional_gelu"]


def compare(op: Any, device: str, dtype: str, limit: int | None = None) -> None:
    count = compare_op(op, device, dtype, limit)
    assert not count.failures, "\n".join(count.failures)


@pytest.mark.parametrize("name", QUICK)
def test_some_samples(name: str, device: str) -> None:
    compare(OPS[name], device, "f32", limit=5)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_all_samples(name: str, device: str) -> None:
    compare(OPS[name], device, "f32")
    if device == "cpu":
        compare(OPS[name], device, "f64")


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from machine.pytorch.ops import EXPRESSED

    monkeypatch.setitem(EXPRESSED, "mul", lambda x, y: x * y * 1.001)
    assert compare_op(OPS["mul"], "cpu", "f32", 3).failures
