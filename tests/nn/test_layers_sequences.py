"""Layers of normalisation, embedding and attention: state, modes, names, files, and capture of what they update."""

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


def expected(batches: list[np.ndarray], momentum: float) -> tuple[np.ndarray, np.ndarray]:
    """Running statistics after some batches, as PyTorch's: the unbiased variance is averaged."""
    mean, var = np.zeros((3, 1)), np.ones((3, 1))
    for x in batches:
        rows = x.reshape(3, -1).astype(np.float64)
        mean += momentum * (rows.mean(1, keepdims=True) - mean)
        var += momentum * (rows.var(1, ddof=1, keepdims=True) - var)
    return mean, var


@pytest.mark.parametrize("momentum", [0.1, 0.5, 1.0])
def test_batch_norm_keeps_running_statistics(device: str, momentum: float) -> None:
    layer, batches = ag.ag_batch_norm(3, momentum=momentum), [X, 2 * X + 1]
    for x in batches:
        y = layer(ag.ag_tensor(x)).numpy().reshape(3, -1)
        np.testing.assert_allclose(y.mean(1), 0, atol=1e-5)
        np.testing.assert_allclose(y.std(1), 1, atol=1e-4)  # eps is in it
    for got, want in zip(statistics(layer), expected(batches, momentum), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


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


def test_captured_batch_norm_updates_its_statistics_on_every_replay(device: str) -> None:
    eager, replayed = ag.ag_batch_norm(3), ag.ag_batch_norm(3)
    step = ag.ag_capture(replayed.forward)
    for k in range(4):
        x = ag.ag_tensor(X * (k + 1) - k)
        assert np.array_equal(step(x).numpy(), eager(x).numpy())
    for got, want in zip(statistics(replayed), statistics(eager), strict=True):
        assert np.array_equal(got, want)
    for layer in (replayed, eager):
        ag.ag_eval(layer)
    assert np.array_equal(step(ag.ag_tensor(X)).numpy(), eager(ag.ag_tensor(X)).numpy())


def test_batch_norm_trains_only_gamma_and_beta(device: str) -> None:
    layer = ag.ag_batch_norm(3)
    assert list(layer.parameters()) == ["gamma", "beta"] and list(layer.buffers()) == ["running_mean", "running_var"]
    with ag.with_grad_tape():
        loss = ag.ag_sum(layer(ag.ag_tensor(X)) * X)
    assert set(ag.backward(loss)) == {layer.gamma, layer.beta}
    assert repr(layer) == ("BatchNorm(num_features=3, eps=1e-05, momentum=0.1)  gamma (3, 1), beta (3, 1), "
                           "running_mean (3, 1), running_var (3, 1)  [6 parameters]")


def saved_and_loaded(model: Any, path: Path) -> Any:
    ag.ag_save_model(model, path / "model.safetensors")
    return ag.ag_load_model(path / "model.safetensors")


def test_norms_are_saved_and_loaded(device: str, tmp_path: Path) -> None:
    model = ag.ag_sequential(ag.ag_batch_norm(3, eps=1e-3, momentum=0.25), ag.ag_layer_norm(3, eps=1e-4),
                             ag.ag_rms_norm(3, eps=1e-3))
    model(ag.ag_tensor(X))
    loaded = saved_and_loaded(model, tmp_path)
    assert repr(loaded) == repr(model) and not loaded[0].training
    for name, value in model.state_dict().items():
        assert np.array_equal(loaded.state_dict()[name], value)


def test_norm_layers_move_with_their_buffers() -> None:
    layer = ag.ag_batch_norm(3).to("cpu:1")
    assert layer(ag.ag_tensor(X, device="cpu:1")).device == "cpu:1"


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


def test_captured_embedding_refuses_bad_ids_on_a_replay(device: str) -> None:
    layer = ag.ag_embedding(4, 2)
    step = ag.ag_capture(lambda ids: layer(ids))
    step(np.array([0, 1]))
    assert np.array_equal(step(np.array([3, 2])).numpy(), layer.weight.numpy()[:, [3, 2]])
    with pytest.raises(IndexError, match=r"ag_embedding_lookup: the id 4 is outside 0\.\.3"):
        step(np.array([0, 4]))


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


def test_causal_attention_does_not_see_the_future(device: str) -> None:
    q, k, v = RNG.standard_normal((3, 4, 6)).astype(np.float32)
    before = ag.ag_attention(q, k, v, causal=True).numpy()
    k[:, 4:], v[:, 4:] = 100, -100
    after = ag.ag_attention(q, k, v, causal=True).numpy()
    assert np.array_equal(after[:, :4], before[:, :4]) and not np.array_equal(after[:, 4:], before[:, 4:])


def test_attention_to_scores_that_overflow_in_exp(device: str) -> None:
    k = np.array([[1e4, -1e4, 0.0]], np.float32)
    assert ag.ag_attention([[1.0, -1.0]], k, [[1.0, 2.0, 3.0]]).numpy().tolist() == [[1.0, 2.0]]
