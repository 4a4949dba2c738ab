"""ag's ops on PyTorch's own samples: what was found is stored, and some are run again where PyTorch is installed.

`pip install torch expecttest` for those, into an environment with --system-site-packages.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from machine.pytorch.layers import CALLS
from machine.pytorch.ops import REASONS, SAME

from ag import ops

TORCH = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("expecttest") is not None
needs_torch = pytest.mark.skipif(not TORCH, reason="PyTorch or expecttest is not installed")
STORED = json.loads(Path(__file__).with_name("results.json").read_text("utf-8"))
OUTCOMES = {"equal", "skipped", *REASONS}
QUICK = ["mul", "matmul", "sum", "softmax", "nn.functional.conv2d", "nn.functional.layer_norm", "nn.functional.gelu",
         "nn.functional.max_pool2d", "nn.functional.bilinear"]


def test_what_is_stored_has_no_failure_and_every_op() -> None:
    assert STORED["ops"].keys() == CALLS.keys()
    assert {"cpu f32", "cpu f64", "lavapipe f32", "SwiftShader f32", "errors"} == STORED["runs"].keys()
    for name, counts in [*STORED["ops"].items(), *STORED["runs"].items()]:
        assert counts.keys() <= OUTCOMES | ({"refused", "computed", "inexpressible"} if name == "errors" else set())


def test_few_samples_cannot_be_written() -> None:
    for name, counts in STORED["runs"].items():
        if name != "errors":
            missing = sum(n for outcome, n in counts.items() if outcome in REASONS)
            assert missing <= 0.08 * sum(counts.values()), name
    assert STORED["runs"]["errors"]["refused"] >= 0.9 * sum(STORED["runs"]["errors"].values())


def test_names_without_another_order_of_axes_are_those_of_ag() -> None:
    assert all(CALLS[name] is getattr(ops, name) for name in SAME.split())


@needs_torch
@pytest.mark.parametrize("name", QUICK)
def test_some_samples(name: str, device: str) -> None:
    from machine.pytorch.op_db import compare_op

    counts, texts = compare_op(name, device, "f32", limit=5)
    assert counts["equal"] and not counts["wrong"], "\n".join(texts)


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_all_samples(name: str, device: str) -> None:
    from machine.pytorch.op_db import compare_op

    for dtype in ("f32", "f64") if device == "cpu" else ("f32",):
        counts, texts = compare_op(name, device, dtype)
        assert not counts["wrong"], "\n".join(text for text in texts if text.startswith("wrong"))


@needs_torch
def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from machine.pytorch.op_db import compare_op

    monkeypatch.setitem(CALLS, "mul", lambda x, y: x * y * 1.001)
    assert compare_op("mul", "cpu", "f32", 3)[0]["wrong"]
