"""16-bit models in files: F16 and BF16 in safetensors, the same bits back, and nothing converted unasked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ag

NUMPY = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
TYPES = {"f16": "F16", "bf16": "BF16", "f32": "F32"}


def model_of(dtype: str) -> ag.Layer:
    previous = ag.ag_dtype(dtype)
    model = ag.ag_sequential(ag.ag_linear(3, 5, "relu"), ag.ag_batch_norm(5), ag.ag_linear(5, 2))
    ag.ag_dtype(previous)
    return model


def entries(path: Path) -> dict[str, Any]:
    """A safetensors file's own account of its tensors."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    assert size % 8 == 0
    return {k: v for k, v in json.loads(content[8 : 8 + size]).items() if k != "__metadata__"}


@pytest.mark.parametrize("dtype", TYPES)
def test_a_model_comes_back_as_it_was(device: str, dtype: str, tmp_path: Path) -> None:
    model, path = model_of(dtype), tmp_path / "model.safetensors"
    ag.ag_save_model(model, path)
    stored = {name: entry["dtype"] for name, entry in entries(path).items()}
    assert {kind for name, kind in stored.items() if "running" not in name} == {TYPES[dtype]}
    assert {kind for name, kind in stored.items() if "running" in name} == {"F32"}
    back = ag.ag_load_model(path)
    for name, x in model.state_dict().items():
        np.testing.assert_array_equal(back.state_dict()[name], x)
    assert {name: p.dtype for name, p in back.parameters().items()} == {
        name: p.dtype for name, p in model.parameters().items()}
    x = ag.ag_tensor(np.ones((3, 4)), dtype=dtype)
    np.testing.assert_array_equal(back(x).numpy(), ag.ag_eval(model)(x).numpy())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_factory_decides_the_type(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    ag.ag_save_model(model_of(dtype), path)
    wide = ag.ag_load_model(path, lambda: model_of("f32"))
    assert {p.dtype for p in wide.parameters().values()} == {"f32"}
    for name, x in ag.ag_load_model(path).state_dict().items():
        np.testing.assert_array_equal(wide.state_dict()[name], np.asarray(x, np.float32))


def test_a_float64_model_stays_one(lavapipe: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    ag.ag_save_model(model_of("f64"), path)
    assert {p.dtype for p in ag.ag_load_model(path).parameters().values()} == {"f64"}
    with pytest.raises(ag.CheckpointError, match=rf"holds layer1_W as f64, which {lavapipe} cannot hold; load it on"):
        ag.ag_load_model(path, device=lavapipe)


def train(dtype: str, path: Path, resume: bool, steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Weights and optimizer state after some steps, saved half-way or begun from there."""
    previous = ag.ag_dtype(dtype)
    ag.ag_seed(7)
    model = model_of(dtype)
    optimizer = ag.optimizer_adam(model, lr=1e-3)
    begin = ag.ag_load_checkpoint(path, model, optimizer).step if resume else 0
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(3, 8)), np.arange(8) % 2) for _ in range(steps)]
    for k, (x, y) in enumerate(batches[begin:], begin):
        with ag.with_grad_tape():
            loss = ag.ag_softmax_cross_entropy_loss(model(ag.ag_tensor(x * 100)), y)
        optimizer.step(ag.backward(loss))
        if k + 1 == steps // 2 and not resume:
            ag.ag_save_checkpoint(path, model, optimizer, step=k + 1)
    ag.ag_dtype(previous)
    return model.state_dict(), optimizer.state_dict()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_checkpoint_goes_on_bit_for_bit(device: str, dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    whole, resumed = train(dtype, path, False, 10), train(dtype, path, True, 10)
    for a, b in zip(whole, resumed, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert np.asarray(a[name]).tobytes() == np.asarray(b[name]).tobytes(), name
    assert any(name.startswith("master.") for name in whole[1])
    assert ("loss_scale" in whole[1]) is (dtype == "f16")


@pytest.mark.parametrize("kinds", [("bf16", "f32"), ("f32", "bf16"), ("f16", "bf16")])
def test_a_checkpoint_of_another_type_is_refused(kinds: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    ag.ag_save_checkpoint(path, model_of(kinds[0]))
    model = model_of(kinds[1])
    before = model.state_dict()
    with pytest.raises(ag.CheckpointError, match=rf"layer1_b is {NUMPY[kinds[0]]} instead of {NUMPY[kinds[1]]}"):
        ag.ag_load_checkpoint(path, model)
    for name, x in model.state_dict().items():
        np.testing.assert_array_equal(x, before[name])
