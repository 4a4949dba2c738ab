"""Random tensors: the same on every device, anew in every replay, and distributed as they should be."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from helpers.dp_classifier import assert_equal, places
from helpers.dp_linear import DATA, make_model
from helpers.errors import expect_error

import ag
from ag import ops
from ag.engine.device import backend_of
from ag.engine.kernels.random import philox
from ag.engine.random import set_stream

DRAWS: dict[str, Callable[[], ag.Tensor]] = {
    "rand": lambda: ops.rand(3, 5), "rand16": lambda: ops.rand(3, 5, dtype="f16"), "randn": lambda: ops.randn(3, 5),
    "randint": lambda: ops.randint(-7, 9, (3, 5)), "randint_like": lambda: ops.randint_like(ops.ones(3, 5), 6),
    "bernoulli": lambda: ops.bernoulli(ops.full((3, 5), 0.4)), "normal": lambda: ops.normal(2.0, 3.0, (3, 5)),
    "uniform": lambda: ops.uniform(-1.0, 4.0, (3, 5)), "rand_like": lambda: ops.rand_like(ops.ones(3, 5)),
    "randn_like": lambda: ops.randn_like(ops.ones(3, 5)), "dropout": lambda: ops.dropout(ops.ones(3, 5), 0.3),
    "dropout2d": lambda: ops.dropout2d(ops.ones(5, 2, 2, 3), 0.3),
    "multinomial": lambda: ops.multinomial(ops.linspace(0.0, 1.0, 6).reshape(3, 2), 9, True)}
ON_HOST: dict[str, Callable[[], ag.Tensor]] = {
    "randperm": lambda: ops.randperm(20), "chosen": lambda: ops.multinomial(ops.arange(1.0, 9.0).reshape(4, 2), 3)}


def begin(device: str) -> None:
    ag.ag_seed(7)
    set_stream(backend_of(device), 0)


@pytest.mark.parametrize("name", [*DRAWS, *ON_HOST])
def test_numbers_are_the_same_on_every_device_and_anew_each_time(device: str, name: str) -> None:
    draw = (DRAWS | ON_HOST)[name]

    def drawn(where: str) -> list[np.ndarray]:
        begin(where)
        with ag.ag_device(where):
            return [draw().numpy() for _ in range(3)]

    first, again, elsewhere = drawn(device), drawn(device), drawn("cpu:1")
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], first[1]) and not np.array_equal(first[1], first[2])
    for a, b in zip(first, elsewhere, strict=True):
        assert np.allclose(a, b, rtol=1e-5, atol=1e-5) if "n" in name[:5] else np.array_equal(a, b)
        assert a.dtype == b.dtype and a.shape == b.shape


@pytest.mark.parametrize("name", DRAWS)
def test_each_replay_draws_what_a_step_in_python_would(device: str, name: str) -> None:
    draw = DRAWS[name]
    with ag.ag_device(device):
        begin(device)
        want = [draw().numpy() for _ in range(6)]
        step = ag.ag_capture(lambda x: (draw(), x + 1.0))
        begin(device)
        for i in range(6):
            assert np.array_equal(step(ag.ag_tensor([[1.0]]))[0].numpy(), want[i]), i
        assert step.replayed


@pytest.mark.parametrize("name", ON_HOST)
def test_what_the_host_sorts_is_no_part_of_a_captured_step(device: str, name: str) -> None:
    with ag.ag_device(device):
        step = ag.ag_capture(ON_HOST[name])
        with expect_error("a sort in a captured step", ag.CaptureError,
                          "randperm: " if name == "randperm" else "multinomial: ", "the host sorts", "before the step"):
            step()


def test_uniform_numbers_are_the_words_of_philox(device: str) -> None:
    begin(device)
    with ag.ag_device(device):
        drawn = ops.rand(1001).numpy()
    assert np.array_equal(drawn, (philox((7, 0), (0, 0), 1001) >> np.uint32(8)) * np.float32(2.0**-24))


def chi2(counts: np.ndarray, shares: np.ndarray) -> float:
    """Distance from what is expected, in standard deviations of its distribution."""
    want = shares * counts.sum() / shares.sum()
    free = len(counts) - 1
    return float((((counts - want) ** 2 / want).sum() - free) / math.sqrt(2 * free))


def test_numbers_are_distributed_as_they_should_be() -> None:
    n = 100_000
    with ag.ag_device("cpu"):
        ag.ag_seed(3)
        u, z = ops.rand(n).numpy().astype(float), ops.randn(n).numpy().astype(float)
        for x, moments in ((u, (1 / 2, 1 / 3, 1 / 4, 1 / 5)), (z, (0, 1, 0, 3)), ):
            for k, moment in enumerate(moments, 1):
                assert abs((x**k).mean() - moment) < 4 * (x**k).std() / math.sqrt(n), (k, moment)
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.01 > abs(np.corrcoef(z[:-1], z[1:])[0, 1])
        assert 0 <= u.min() < u.max() < 1 and ops.rand(n, dtype="f16").numpy().max() < 1 > ops.rand(
            n, dtype="bf16").numpy().max()
        assert 4 < abs(z).max() < 5.8 and np.isfinite(z).all()
        assert abs(chi2(np.histogram(u, 50, (0, 1))[0], np.ones(50))) < 4
        edges = np.linspace(-2.5, 2.5, 21)
        shares = np.diff([0.5 * (1 + math.erf(e / math.sqrt(2))) for e in edges])
        assert abs(chi2(np.histogram(z, edges)[0], shares)) < 4
        assert abs(chi2(np.bincount(ops.randint(3, 40, (n,)).numpy() - 3), np.ones(37))) < 4
        assert abs(chi2(np.bincount(ops.bernoulli(np.full(n, 0.3)).numpy().ravel().astype(int)),
                        np.array([0.7, 0.3]))) < 4
        weights = np.array([[1.0, 0.0], [0.0, 5.0], [4.0, 2.0], [2.0, 1.0]]) * [1e-37, 1e37]
        found = ops.multinomial(weights, 20_000, True).numpy()
        for column in (0, 1):
            counts, some = np.bincount(found[:, column], minlength=4), weights[:, column] > 0
            assert not counts[~some].any() and abs(chi2(counts[some], weights[some, column])) < 4
        firsts, seconds = ops.multinomial(np.tile([[1.0], [2.0], [3.0]], 20_000), 2).numpy()
        assert (firsts != seconds).all() and abs(chi2(np.bincount(firsts), np.array([1, 2, 3]))) < 4
        pairs = [(2, 3), (1, 3), (1, 2)]  # without the first
        want = sum(w / 6 * np.insert(np.array(pair) / sum(pair), i, 0) for i, (w, pair) in enumerate(
            zip((1, 2, 3), pairs, strict=True)))
        assert abs(chi2(np.bincount(seconds), want)) < 4
        orders = np.array([ops.randperm(4).numpy() for _ in range(600)])
        assert (np.sort(orders) == np.arange(4)).all()
        assert abs(chi2(np.unique(orders @ [64, 16, 4, 1], return_counts=True)[1], np.ones(24))) < 4


def test_gradients_flow_to_the_parameters_of_a_distribution(device: str) -> None:
    with ag.ag_device(device):
        begin(device)
        mean, std = ag.ag_param([[1.0, 2.0]]), ag.ag_param([[0.5], [2.0]])
        with ag.with_grad_tape():
            x = ops.normal(mean, std)
            loss = x.sum()
        grads = ag.backward(loss)
        noise = (x.numpy() - mean.numpy()) / std.numpy()
        assert np.allclose(grads[mean].numpy(), 2) and np.allclose(grads[std].numpy().ravel(), noise.sum(1), rtol=1e-4)
        p = ag.ag_param([[0.25, 0.75]])
        with ag.with_grad_tape():
            loss = (ops.bernoulli(p) * p).sum() + ops.dropout(p, 0.5).sum() + ops.uniform(p, 2.0).sum()
        assert np.isfinite(ag.backward(loss)[p].numpy()).all()


def test_dropout_drops_what_the_layer_drops(device: str) -> None:
    with ag.ag_device(device):
        x = ag.ag_tensor(np.ones((6, 7)))
        begin(device)
        want = ag.ag_dropout(0.3)(x).numpy()
        begin(device)
        assert np.array_equal(ops.dropout(x, 0.3).numpy(), want) and ops.dropout(x, 0.3, False) is x
        assert not ops.dropout(x, 1.0).numpy().any() and ops.dropout(x, 0.0) is x
        channels = ops.dropout2d(ag.ag_tensor(np.ones((8, 3, 2, 9)), dtype="f16"), 0.5)
        assert channels.dtype == "f16" and ((channels.numpy() == channels.numpy()[:, :1, :1]).all())
        assert {*channels.numpy()[:, 0, 0].ravel().tolist()} == {0.0, 2.0}


def test_shapes_types_and_edges(device: str) -> None:
    with ag.ag_device(device):
        assert ops.rand().shape == () and ops.randn(0, 3).shape == (0, 3) and ops.randint(5, (0,)).size == 0
        assert ops.randint(4, size=(2,)).shape == ops.randint(0, 4, 2).shape == (2,)
        assert ops.randperm(0).size == 0 and ops.randperm(1).numpy().tolist() == [0] and ops.randperm(3).dtype == "i32"
        assert ops.rand(2, dtype="bf16").dtype == ops.randn_like(ops.ones(1, dtype="bf16")).dtype == "bf16"
        assert ops.bernoulli(ops.ones(2, dtype="f16")).dtype == "f16" and ops.multinomial([0.0, 3.0], 1).item() == 1
        assert ops.multinomial(ops.ones(3, 2, 4), 2).shape == (2, 2, 4) == ops.multinomial(ops.ones(3, 2, 4), 2,
                                                                                          True).shape
        assert ops.uniform(np.zeros((2, 1)), np.ones((1, 3))).shape == (2, 3)
        assert abs(ops.randn(4, dtype="f64", device="cpu").numpy()).max() < 6 and ops.normal(0.0, 1.0).shape == ()
        assert ops.randint(-(2**31), -1, (9,)).numpy().max() < 0
        assert ops.ones(2, 2).bernoulli().sum().item() == 4.0 and not hasattr(ag.Tensor, "rand")


def test_odd_arguments_are_refused() -> None:
    for call, error, fragments in (
            (lambda: ops.rand(2, dtype="i32"), ag.DtypeError, ("rand: the element type i32", "floating")),
            (lambda: ops.randint(3, 3, (2,)), ValueError, ("randint: low is 3 and high 3",)),
            (lambda: ops.randint(0, 1 << 31, (2,)), ValueError, ("randint: ", "less than 2**31")),
            (lambda: ops.randint(5), TypeError, ("randint: no size",)),
            (lambda: ops.normal(0.0, -1.0, (2,)), ValueError, ("normal: std is -1.0",)),
            (lambda: ops.dropout([[1.0]], 1.5), ValueError, ("dropout: p is 1.5", "0 to 1")),
            (lambda: ops.dropout([[1.0]], float("nan")), ValueError, ("dropout: p is nan",)),
            (lambda: ops.dropout2d(ops.ones(2)), ag.ShapeError, ("dropout2d: x is (2,)",)),
            (lambda: ops.multinomial([1.0, 2.0], 3), ag.ShapeError, ("multinomial: ", "num_samples is 3")),
            (lambda: ops.multinomial([1.0, 0.0], 2), ValueError, ("multinomial: fewer than 2 classes",)),
            (lambda: ops.multinomial([0.0, 0.0], 2, True), ValueError, ("multinomial: ", "all 0")),
            (lambda: ops.multinomial([1.0, -1.0, 1.0], 2, True), ValueError, ("multinomial: ", "negative")),
            (lambda: ops.multinomial([1.0, np.nan], 2, True), ValueError, ("multinomial: ", "not finite")),
            (lambda: ops.multinomial([1.0, np.inf], 2, True), ValueError, ("multinomial: ", "not finite")),
            (lambda: ops.bernoulli(ops.ones(2, dtype="i32")), ag.DtypeError, ("bernoulli: ", "i32"))):
        with expect_error("an odd argument", error, *fragments):
            call()


@pytest.mark.parametrize("capture", [True, False])
def test_a_job_draws_the_same_on_any_number_of_replicas(device: str, capture: bool) -> None:
    def forward(model: ag.Layer, sample: tuple[np.ndarray, np.ndarray]) -> ag.Tensor:
        h = model(sample[0])
        return ops.dropout(h, 0.3) + ops.normal(0.0, 0.1, h.shape) * ops.randint_like(h, 2).astype("bool")

    def trained(replicas: int, seed: int = 4) -> ag.DPResult:
        return ag.dp_train(make_model, DATA, ag.ag_mse_loss, forward, target_fn=lambda s: s[1], batch=8, n_iter=3,
                           lr=0.05, seed=seed, devices=places(device, replicas), capture=capture, verbose=False)

    one, other = trained(1), trained(1, 5)
    assert_equal(trained(2), one)
    assert not np.array_equal(one.loss_history, other.loss_history)
