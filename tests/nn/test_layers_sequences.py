"""Layers of normalisation, embedding and attention: state, modes, names and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ag

RNG = np.random.default_rng(3)
X = RNG.standard_normal((3, 2, 5)).astype(np.float32)


def statistics(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    return layer.running_mean.numpy(), layer.running_var.numpy()


def test_batch_norm_in_eval_mode_uses_them_and_leaves_them(device: str) -> None:
    layer = ag.ag_batch_norm(3)
    layer(ag.ag_tensor(X))
    before = statistics(layer)
    ag.ag_eval(layer)
    y = layer(ag.ag_tensor(X)).numpy()
    mean, var = (s.reshape(3, 1, 1) for s in before)
    np.testing.assert_allclose(y, (X - mean) / np.sqrt(var + 1e-5), rtol=1e-5, atol=1e-6)
    assert all(np.array_equal(a, b) for a, b in zip(before, statistics(layer), strict=True))
    assert layer(ag.ag_tensor(X[:, :1, :1])).shape == (3, 1, 1)  # one sample is enough


def test_batch_norm_trains_only_gamma_and_beta(device: str) -> None:
    layer = ag.ag_batch_norm(3)
    assert list(layer.parameters()) == ["gamma", "beta"] and list(layer.buffers()) == ["running_mean", "running_var"]
    with ag.with_grad_tape():
        loss = ag.ag_sum(layer(ag.ag_tensor(X)) * X)
    assert set(ag.backward(loss)) == {layer.gamma, layer.beta}
    assert repr(layer) == ("BatchNorm(num_features=3, eps=1e-05, momentum=0.1)  gamma (3, 1), beta (3, 1), "
                           "running_mean (3, 1),\n"
                           "    running_var (3, 1)  [6 parameters]")


def saved_and_loaded(model: Any, path: Path) -> Any:
    ag.ag_save_model(model, path / "model.safetensors")
    return ag.ag_load_model(path / "model.safetensors")


def test_embedding(device: str, tmp_path: Path) -> None:
    ag.ag_seed(5)
    layer = ag.ag_embedding(1000, 50)
    values = layer.weight.numpy()
    assert abs(values.mean()) < 0.02 and abs(values.std() - 1) < 0.02
    assert repr(layer) == "Embedding(vocab_size=1000, dim=50)  weight (50, 1000)  [50,000 parameters]"
    ids = np.array([[3, 999], [0, 3]])
    assert np.array_equal(layer(ids).numpy(), values[:, ids])
    assert np.array_equal(layer(ag.ag_tensor(ids, dtype="i32")).numpy(), values[:, ids])
    assert np.array_equal(saved_and_loaded(layer, tmp_path)(ids).numpy(), values[:, ids])


def test_gradient_of_a_word_that_occurs_several_times(device: str) -> None:
    weight, ids = ag.ag_param(np.zeros((2, 4))), np.array([[1, 3], [1, 1]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_embedding_lookup(weight, ids) * [[[1.0, 2.0], [4.0, 8.0]], [[1.0, 1.0], [1.0, 1.0]]])
    assert ag.backward(loss)[weight].numpy().tolist() == [[0, 13, 0, 2], [0, 3, 0, 1]]


def test_multihead_attention(device: str, tmp_path: Path) -> None:
    layer = ag.ag_multihead_attention(4, 2, dropout=0.5)
    assert list(layer.parameters()) == ["W_q", "W_k", "W_v", "W_o", "b_o"]
    assert repr(layer).startswith("MultiheadAttention(d_model=4, n_heads=2, dropout=0.5, bias=True)  W_q (4, 4), ")
    assert "b_o" not in ag.ag_multihead_attention(4, 2, bias=False).parameters()
    x = ag.ag_tensor(RNG.standard_normal((4, 6, 2)))
    assert not np.array_equal(layer(x).numpy(), layer(x).numpy())  # train mode drops
    ag.ag_eval(layer)
    y = layer(x, causal_mask=True).numpy()
    assert np.array_equal(y, layer(x, x, x, True).numpy())
    assert np.array_equal(saved_and_loaded(layer, tmp_path)(x, causal_mask=True).numpy(), y)


def test_attention_to_scores_that_overflow_in_exp(device: str) -> None:
    k = np.array([[1e4, -1e4, 0.0]], np.float32)
    assert ag.ag_attention([[1.0, -1.0]], k, [[1.0, 2.0, 3.0]]).numpy().tolist() == [[1.0, 2.0]]


def test_captured_embedding_refuses_bad_ids_on_a_replay(device: str) -> None:
    layer = ag.ag_embedding(4, 2)
    step = ag.ag_capture(lambda ids: layer(ids))
    step(np.array([0, 1]))
    assert np.array_equal(step(np.array([3, 2])).numpy(), layer.weight.numpy()[:, [3, 2]])
    with pytest.raises(IndexError, match=r"ag_embedding_lookup: the id 4 is outside 0\.\.3"):
        step(np.array([0, 4]))
