"""Random shapes for tests of properties, and the gradients of a weighted sum."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from table.rows import Array, Shape

import ag

# One set of devices per test; shapes come from a fixed seed, so that a failure comes again.
examples = settings(max_examples=40, derandomize=True, deadline=None,
                    suppress_health_check=[HealthCheck.function_scoped_fixture])
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def with_axes(draw: st.DrawFn) -> tuple[Shape, tuple[int, ...] | None]:
    """A shape and some of its axes, counted from either end, or None for all."""
    shape = draw(shapes)
    axes = draw(st.lists(st.sampled_from(range(len(shape))), unique=True) if shape else st.just([]))
    signed = tuple(a - len(shape) if draw(st.booleans()) else a for a in axes)
    return shape, draw(st.sampled_from([signed, None]))


def numbers(shape: Shape, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def gradients(loss: ag.Tensor, *params: ag.Tensor) -> list[Array]:
    found = ag.backward(loss)
    return [found[p].numpy() for p in params]


def weighted(out: ag.Tensor, weights: Array) -> ag.Tensor:
    return ag.ag_sum(ag.ag_mul(out, ag.ag_reshape(ag.ag_tensor(weights), *weights.shape)))


def param(array: Array) -> ag.Tensor:
    """A parameter of exactly this shape; `ag_param` would make a column of a vector."""
    p = ag.ag_param(array.reshape(-1, 1))
    p.buffer = p.buffer.view(array.shape)
    return p
