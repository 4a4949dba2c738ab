"""Convolution, pooling, norms and resizing beside PyTorch: values and gradients in float64, of random shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import ag
from ag import ops

torch = pytest.importorskip("torch", reason="PyTorch is not installed, so the case table's oracles are all there is")
F = torch.nn.functional
Array = np.ndarray[Any, Any]
ROUNDS = 5


def first(x: Array) -> Any:
    return torch.tensor(np.ascontiguousarray(np.moveaxis(x, -1, 0)), requires_grad=True)


def equal(name: str, ours: Callable[..., Any], theirs: Callable[..., Any], x: Array, *weights: Array) -> None:
    """Compare results, and gradients of a sum of cubes; the batch of `x` is the last axis."""
    with ag.ag_device("cpu"), ag.ag_dtype("f64"):
        params = [ag.ag_param(a) for a in (x, *weights)]
        with ag.with_grad_tape():
            y = ours(*params)
            loss = ag.ag_sum(y * y * y)
        grads = ag.backward(loss)
        found = [grads[p].numpy() for p in params]
    given = [first(x), *(torch.tensor(w, requires_grad=True) for w in weights)]
    want = theirs(*given)
    (want**3).sum().backward()
    wanted = [np.moveaxis(given[0].grad.numpy(), 0, -1), *(w.grad.numpy() for w in given[1:])]
    for a, b in zip([y.numpy(), *found], [np.moveaxis(want.detach().numpy(), 0, -1), *wanted], strict=True):
        assert a.shape == b.shape, name
        assert np.abs(a - b).max(initial=0) <= 1e-10 * max(1.0, np.abs(b).max(initial=0)), name


def cases() -> Iterator[tuple[str, Callable[[np.random.Generator], None]]]:
    def op(name: str) -> tuple[Any, Any]:
        return getattr(ops, name), getattr(F, name)

    def draw(rng: np.random.Generator, count: int, low: int, high: int) -> tuple[int, ...]:
        return tuple(map(int, rng.integers(low, high, count)))

    def convolution(axes: int) -> Callable[[np.random.Generator], None]:
        def check(rng: np.random.Generator) -> None:
            (groups,), (i, o) = draw(rng, 1, 1, 4), draw(rng, 2, 1, 3)
            kernel, image = draw(rng, axes, 1, 4), draw(rng, axes, 6, 9)
            x, w = rng.normal(size=(groups * i, *image, 2)), rng.normal(size=(groups * o, i, *kernel))
            move: dict[str, Any] = {name: draw(rng, axes, low, 3) for name, low in (
                ("stride", 1), ("padding", 0), ("dilation", 1))}
            if rng.integers(3) == 0:
                move |= {"stride": 1, "padding": "same"}
            ours, theirs = op(f"conv{axes}d")
            equal(f"conv{axes}d {move}", lambda x, w: ours(x, w, groups=groups, **move), lambda x, w: theirs(
                x, w, groups=groups, **move), x, w)
        return check

    def transposed(axes: int) -> Callable[[np.random.Generator], None]:
        def check(rng: np.random.Generator) -> None:
            (groups,), (i, o) = draw(rng, 1, 1, 4), draw(rng, 2, 1, 3)
            kernel, image = draw(rng, axes, 1, 4), draw(rng, axes, 4, 7)
            x, w = rng.normal(size=(groups * i, *image, 2)), rng.normal(size=(groups * i, o, *kernel))
            stride, dilation = draw(rng, axes, 1, 4), draw(rng, axes, 1, 3)
            move = {"stride": stride, "dilation": dilation, "padding": draw(rng, axes, 0, 2), "output_padding": tuple(
                int(rng.integers(0, max(pair))) for pair in zip(stride, dilation, strict=True))}
            ours, theirs = op(f"conv_transpose{axes}d")
            equal(f"conv_transpose{axes}d {move}", lambda x, w: ours(x, w, groups=groups, **move),
                  lambda x, w: theirs(x, w, groups=groups, **move), x, w)
        return check

    def pooling(kind: str, axes: int) -> Callable[[np.random.Generator], None]:
        def check(rng: np.random.Generator) -> None:
            size, image = draw(rng, axes, 1, 4), draw(rng, axes, 6, 10)
            x = np.maximum(rng.normal(size=(3, *image, 2)).round(1), -0.5)  # with equal ones
            move: dict[str, Any] = {"stride": draw(rng, axes, 1, 5), "ceil_mode": bool(rng.integers(2)),
                                    "padding": tuple(int(rng.integers(0, k // 2 + 1)) for k in size)}
            move |= {"dilation": draw(rng, axes, 1, 3)} if kind == "max" else {
                "count_include_pad": bool(rng.integers(2))}
            ours, theirs = op(f"{kind}_pool{axes}d")
            equal(f"{kind}_pool{axes}d {image} {size} {move}", lambda x: ours(x, size, **move),
                  lambda x: theirs(x, size, **move), x)
            out = draw(rng, axes, 1, 9)
            ours, theirs = op(f"adaptive_{kind}_pool{axes}d")
            equal(f"adaptive_{kind}_pool{axes}d {image} {out}", lambda x: ours(x, out), lambda x: theirs(x, out), x)
        return check

    def resizing(mode: str, axes: int) -> Callable[[np.random.Generator], None]:
        def check(rng: np.random.Generator) -> None:
            x = rng.normal(size=(2, *draw(rng, axes, 2, 8), 3))
            to: dict[str, Any] = {"size": draw(rng, axes, 1, 12)} if rng.integers(2) else {
                "scale_factor": tuple(float(rng.choice([2, 3, 0.5, 1.75, 1.3])) for _ in range(axes))}
            if "linear" in mode or mode == "bicubic":
                to["align_corners"] = bool(rng.integers(2))
            equal(f"{mode} {x.shape} {to}", lambda x: ops.interpolate(x, mode=mode, **to),
                  lambda x: F.interpolate(x, mode=mode, **to), x)
        return check

    def norms(rng: np.random.Generator) -> None:
        groups, shape = int(rng.integers(1, 4)), draw(rng, 2, 2, 6)
        x, w = rng.normal(size=(groups * 2, *shape, 3)), rng.normal(size=(2, groups * 2, 1))
        equal("group_norm", lambda x, w, b: ops.group_norm(x, groups, w, b, 1e-3),
              lambda x, w, b: F.group_norm(x, groups, w.flatten(), b.flatten(), 1e-3), x, *w)
        equal("instance_norm", lambda x, w, b: ops.instance_norm(x, w, b),
              lambda x, w, b: F.instance_norm(x, weight=w.flatten(), bias=b.flatten()), x, *w)
        size = int(rng.integers(1, 6))
        equal("local_response_norm", lambda x: ops.local_response_norm(x, size, 0.5, 0.6, 1.5),
              lambda x: F.local_response_norm(x, size, 0.5, 0.6, 1.5), x)

    def columns(rng: np.random.Generator) -> None:
        size, image = draw(rng, 2, 1, 4), draw(rng, 2, 5, 8)
        move = {"dilation": draw(rng, 2, 1, 3), "padding": draw(rng, 2, 0, 3), "stride": draw(rng, 2, 1, 3)}
        x = rng.normal(size=(2, *image, 3))
        equal("unfold", lambda x: ops.unfold(x, size, **move), lambda x: F.unfold(x, size, **move), x)
        seen = rng.normal(size=F.unfold(first(x), size, **move).shape).transpose(1, 2, 0)
        equal("fold", lambda x: ops.fold(x, image, size, **move), lambda x: F.fold(x, image, size, **move), seen)
        x = rng.normal(size=(8, 4, 6, 2))
        equal("pixel_shuffle", lambda x: ops.pixel_shuffle(x, 2), lambda x: F.pixel_shuffle(x, 2), x)
        equal("pixel_unshuffle", lambda x: ops.pixel_unshuffle(x, 2), lambda x: F.pixel_unshuffle(x, 2), x)

    yield from ((f"conv{axes}d", convolution(axes)) for axes in (1, 2, 3))
    yield from ((f"conv_transpose{axes}d", transposed(axes)) for axes in (1, 2))
    yield from ((f"{kind}_pool{axes}d", pooling(kind, axes)) for kind in ("max", "avg") for axes in (1, 2, 3))
    modes: Sequence[tuple[str, int]] = [("linear", 1), ("bilinear", 2), ("trilinear", 3), ("bicubic", 2), (
        "nearest", 2), ("nearest", 3), ("nearest-exact", 2), ("area", 2)]
    yield from ((f"{mode}{axes}d", resizing(mode, axes)) for mode, axes in modes)
    yield from (("norms", norms), ("columns", columns))


CHECKS = dict(cases())


@pytest.mark.parametrize("name", CHECKS)
def test_it_equals_pytorch(name: str) -> None:
    for seed in range(ROUNDS):
        CHECKS[name](np.random.default_rng(seed))
