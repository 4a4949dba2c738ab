"""Runs of dp_train with a linear layer."""

from __future__ import annotations

from typing import Any

import numpy as np

import ag

RNG = np.random.default_rng(3)
XS = RNG.standard_normal((12, 4, 1)).astype(np.float32)
YS = RNG.standard_normal((12, 2, 1)).astype(np.float32)
DATA = list(zip(XS, YS, strict=True))


def make_model() -> ag.Layer:
    return ag.ag_linear(4, 2)


def train(data: Any = DATA, make: Any = make_model, **options: Any) -> ag.DPResult:
    settings = {"loss_fn": ag.ag_mse_loss, "forward_fn": lambda m, s: m(s[0]), "target_fn": lambda s: s[1],
                "devices": ["cpu", "cpu:1"], "n_iter": 3, "seed": 1, "verbose": False,
                "stack": 1, "shuffle": False}
    return ag.dp_train(make, data, **{**settings, **options})
