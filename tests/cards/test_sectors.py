"""Kernels touch hardly more memory than they need, counted in sectors; and the counter itself is right."""

from __future__ import annotations

import numpy as np
import pytest
from cards.sectors import LAUNCHES, Launch, attention, counted, ids, key, normal, planned, ratio, run

from ag.engine.primitive import PRIMITIVES
from ag.engine.shape import Window

MOST = 1.3  # times the fewest sectors: whoever reads a row that begins inside a sector touches one more
BEYOND = {  # let be: a card puts samples first where there are many, and permute reads a word of each sector then
    "attention, 16 samples last": 8.0, "attention_grad, 16 samples last": 8.0, "permute, to 16 samples first": 4.5,
    "take": 3.3, "scatter_add": 3.0,  # words of a vocabulary, of which neighbours want any
}
QUICK = {"layer_norm", "sum", "adam_update"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
                                  for name in LAUNCHES])
def test_sectors(name: str) -> None:
    assert ratio(LAUNCHES[name]()) <= BEYOND.get(name, MOST)


@pytest.mark.parametrize("name", [name for name in LAUNCHES if "_direct" in name or "conv2d" in name])
def test_the_rows_of_convolutions_are_of_the_kernels_that_they_name(name: str) -> None:
    assert planned(LAUNCHES[name]()).kernel == name.partition(" ")[0]


def test_whoever_reads_a_column_touches_a_sector_per_word() -> None:
    x = normal(64, 64)
    _, group = run(Launch("permute", [normal(64, 64), x], {"axes": (1, 0)}, "S"), 1)
    out, of_x = counted(group)[0], counted(group)[1]
    assert out.touched == out.fewest and of_x.touched == 8 * of_x.fewest


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "softmax_cross_entropy_ids"])
def test_a_column_that_fits_is_read_once(name: str) -> None:
    """All workgroups run in any order, and their results are the same."""
    launch, at = LAUNCHES[name](), PRIMITIVES[name].operands.index("x")
    results, group = run(launch)
    assert counted(group)[at].touched == launch.operands[at].size // 8
    again, _ = run(launch, order=np.random.default_rng(0).permutation)
    for got, want in zip(again, results, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_column_that_does_not_fit_is_read_twice() -> None:
    _, group = run(Launch("softmax", [normal(1, 5000, 264), normal(1, 5000, 264)], {"axis": 1}), 1)
    assert 2 * 5000 <= counted(group)[1].touched <= 2.02 * 5000  # behind the end, the last element


WINDOW = Window((3, 2), (2, 1), (1, 1))
CASES: dict[str, Launch] = {  # with edges, and more than one workgroup
    "matmul": Launch("matmul", [normal(70, 37), normal(70, 21), normal(21, 37)], {"ta": False, "tb": False}, "S4"),
    "fused": Launch("fused", [normal(300), *(normal(300) for _ in range(4))],
                    {"chain": (("mul", 0, 1, 0.0), ("gelu", 4, 4, 0.0), ("sub", 5, 2, 0.0))}, "S"),
    "conv2d": Launch("conv2d", [normal(5, 4, 6, 3), normal(4, 7, 5, 3), normal(5, 4, 3, 2)],
                     {"window": WINDOW, "groups": 1}, "S"),
    "conv2d_input_grad": Launch(
        "conv2d_input_grad", [normal(4, 7, 5, 3), normal(5, 4, 3, 2), normal(5, 4, 6, 3)],
        {"window": WINDOW, "groups": 1, "image": (7, 5)}, "S"),
    "conv2d_input_grad 1 x 1": Launch(
        "conv2d_input_grad", [normal(20, 7, 5, 3), normal(9, 20, 1, 1), normal(9, 7, 5, 3)],
        {"window": Window((1, 1)), "groups": 1, "image": (7, 5)}, "S"),
    "conv2d_direct": Launch("conv2d", [normal(2, 4, 6, 3), normal(4, 7, 5, 3), normal(2, 4, 3, 2)],
                            {"window": WINDOW, "groups": 1}, "S"),
    "batched_matmul": Launch("batched_matmul", [normal(2, 3, 9, 7), normal(3, 9, 20), normal(3, 7, 20)],
                             {"ta": False, "tb": True, "chunk": 12}, "S"),
    "softmax_cross_entropy_ids": Launch("softmax_cross_entropy_ids", [
        normal(1, 20), normal(9, 20), normal(9, 20), ids(20, 9)], {"factor": 0.5}, "S"),
    "take": Launch("take", [normal(5, 40, 1), normal(5, 70, 1), ids(40, 70)], {"wraps": False}, "S"),
    "scatter_add": Launch("scatter_add", [normal(66, 70, 1), normal(66, 40, 1), ids(40, 70)],
                          {"length": 70, "first": 3, "last": 39, "wraps": False}, "S"),
    "layer_norm": Launch("layer_norm", [normal(20, 9), normal(1, 9), normal(1, 9), normal(20, 9), normal(20, 1),
                                        normal(20, 1)], {"eps": 1e-5}, "S"),
    "rms_norm": Launch("rms_norm", [normal(20, 9), normal(1, 9), normal(20, 9), normal(20, 1)], {"eps": 1e-6}, "S"),
    "attention": Launch("attention", [normal(16, 40, 3), normal(2, 40, 3), *(normal(16, 40, 3) for _ in range(3)),
                                      key()], {"heads": 2, "causal": True, "factor": 0.2, "rate": 0.3}, "S"),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in ("matmul", "fused", "layer_norm") else
                                               pytest.mark.slow) for name in CASES])
def test_it_computes_what_the_reference_does(name: str) -> None:
    launch = CASES[name]
    primitive = PRIMITIVES[launch.primitive]
    got, _ = run(launch)
    want = [x.copy() for x in launch.operands]
    primitive.reference(*want, **launch.params)
    for found, exact in zip(got, want, strict=True):
        np.testing.assert_allclose(found, exact, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
def test_samples_that_lie_side_by_side_are_eight_times_as_many_sectors() -> None:
    assert ratio(attention(16, first=False, gradient=False), 1) > 7.5
