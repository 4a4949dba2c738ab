"""Every public name of ops, layers and optimizers, given one wrong argument each: a result or a named error."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import ag

BAD: dict[str, Any] = {
    "None": None, "text": "abc", "objects": np.array([1, None, "x"], object), "ragged": [[1, 2], [3]], "empty": [],
    "another shape": np.ones((3, 5, 2, 7)), "no elements": np.zeros((0, 3)), "dict": {}, "object": object(),
    "function": len, "class": int, "set": {1}, "NaN": float("nan"), "negative": -1, "complex": 1j, "huge": 10**40,
    "texts": ["a", "b"], "Nones": [None], "scalar": np.float64(3)}
SQUARE = np.arange(1.0, 5.0).reshape(2, 2)
NAMESPACE = {"ag": ag, "nn": ag.nn, "np": np, "SQUARE": SQUARE}
GOOD = {  # what is good for an argument of this name
    **dict.fromkeys(("x", "w", "W", "h", "a", "b", "A", "B", "q", "k", "v", "logits", "target", "weight"), "SQUARE"),
    **dict.fromkeys(("input", "input1", "input2", "inputs", "targets", "var"), "SQUARE"),
    **dict.fromkeys(("anchor", "positive", "negative"), "SQUARE"),
    **dict.fromkeys(("in_features", "out_features", "in_ch", "out_ch", "d_model", "n_heads", "num_features"), "2"),
    **dict.fromkeys(("size", "step_size", "steps", "vocab_size", "T_max", "p", "scalar"), "2"),
    **dict.fromkeys(("gamma", "beta"), "np.ones((2, 1))"), **dict.fromkeys(("body", "model"), "ag.ag_linear(2, 2)"),
    "t": "ag.ag_tensor(SQUARE)", "pred": "SQUARE / 10", "tensors": "[SQUARE]", "idx": "[0, 1]", "key": "0", "dim": "0",
    "device": "'cpu'", "dtype": "'f32'", "shape": "(4,)", "params": "[ag.ag_param(SQUARE)]", "grads": "{}",
    "max_norm": "1.0",
    "mask": "SQUARE > 2", "value": "0.5", "threshold": "0.5", "repeats": "2", "equation": "'ij->i'",
    "x1": "SQUARE", "x2": "SQUARE",
    "index": "[[0, 1]]", "indices": "([0, 1],)", "src": "SQUARE", "reduce": "'sum'", "values": "1.0",
    "shifts": "1", "source": "0", "destination": "1", "axis0": "0", "axis1": "1", "widths": "(0, 0)", "chunks": "2",
    "tensor": "ag.ag_param(SQUARE)", "val": "1.0", "sparsity": "0.5", "nonlinearity": "'relu'", "start": "0",
    "end": "2", "n": "3",
    "fill_value": "1.0", "sections": "2", "low": "3", "probabilities": "SQUARE", "num_samples": "1",
    "layers": "1", "features": "2", "capacity": "4", "classes": "3", "ids": "[0, 1]", "kernel": "1", "rate": "0.5",
    "padding": "1", "unflattened_size": "(2, 1)",
    "output_size": "1", "num_groups": "2", "num_channels": "2", "norm_type": "2.0",
    "upscale_factor": "1", "downscale_factor": "1",
    "optimizer": "ag.optimizer_sgd([ag.ag_param(SQUARE)], lr=1.0)"}
# By what is in the name; the last counts.
IMAGES = {word: {"x": f"np.ones((2, {'4, ' * axes}1))", "w": f"np.ones((2, 2{', 1' * axes}))"} for word, axes in {
    "fold": 2, "pixel": 2, "local": 2, "pool": 2, "1d": 1, "2d": 2, "3d": 3, "ops.fold": 1}.items()}
# What has tests of its own, and a file.
ELSEWHERE = {"Layer", "Optimizer", "Schedule", "KeyValueCache", "ResNet", "ag_resnet", "init"}
NAMES = sorted({id(getattr(space, name)): f"{space.__name__[3:]}.{name}" for space in (ag.ops, ag.nn, ag.optim)
                for name in dir(space) if name not in ELSEWHERE}.values()) + [
                    f"nn.init.{name}" for name in ag.nn.init.__all__]
NAMED = (r"(ag_|optimizer_|lr_scheduler_|clip_grad_|numpy\.|summary|step|data|Layer|load_state_dict|InstanceNorm)"
         r"\w*(: |\(\) )")


def made(source: str, **names: object) -> Any:
    return eval(source, {**NAMESPACE, **names})


def raw_errors(calls: Iterator[tuple[str, Callable[[], object]]], own: str = "power") -> list[str]:
    """Those that are not named, by the function's `own` name or another."""
    raw = []
    for what, call in calls:
        try:
            call()
        except (ag.AgError, TypeError, ValueError, IndexError, FloatingPointError) as error:
            if not re.match(f"{own}: |{NAMED}", str(error)):
                raw.append(f"{what}: {type(error).__name__}: {str(error)[:100]}")
    return raw


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_argument_is_named(name: str) -> None:
    function = made(f"ag.{name}")
    good = GOOD | {key: x for word, given in IMAGES.items() if word in name for key, x in given.items()}

    def calls() -> Iterator[tuple[str, Callable[[], object]]]:
        parameters = inspect.signature(function).parameters.values()
        several = {p.name for p in parameters if p.kind is p.VAR_POSITIONAL}
        given = {p.name: made(good[p.name]) for p in parameters if p.default is p.empty and p.name not in several}
        for what, bad in BAD.items():
            for p in parameters:
                if p.name in several:
                    yield f"*{p.name} is {what}", lambda bad=bad: function(*given.values(), bad)
                else:
                    yield f"{p.name} is {what}", lambda p=p, bad=bad: function(**{**given, p.name: bad})

    assert not raw_errors(calls(), name.rpartition(".")[2])


LAYERS = ["Linear(2, 2)", "Conv2d(2, 2, 1)", "Dropout(0.5)", "Embedding(3, 2)", "BatchNorm(2)", "LayerNorm(2)",
          "RMSNorm(2)", "MaxPool(2)", "AvgPool(2)", "GlobalPool()", "Flatten()", "MultiheadAttention(2, 1)",
          "Residual(nn.Linear(2, 2))", "Sequential(nn.Linear(2, 2))", "Conv1d(2, 2, 1)", "Conv3d(2, 2, 1)",
          "ConvTranspose2d(2, 2, 1)", "GroupNorm(1, 2)", "InstanceNorm2d(2)", "PReLU(2)", "ReLU()",
          "AdaptiveAvgPool2d(1)", "ReflectionPad2d(1)", "Dropout2d(0.5)", "Upsample(scale_factor=2)", "Identity()",
          "Unflatten(0, (1, -1))", "PixelShuffle(2)"]


@pytest.mark.parametrize("call", [
    "ag.optimizer_adam(params).step(x)", "ag.optimizer_adam({'p': params[0]}).step({'p': x})",
    "ag.optimizer_adam(params).load_state_dict(x)",
    "ag.lr_scheduler_step(ag.optimizer_sgd(params), 2).load_state_dict(x)",
    "nn.Linear(2, 2).load_state_dict(x)", "nn.Linear(2, 2).load_state_dict({'W': x, 'b': x})", "nn.Linear(2, 2).to(x)",
    *(f"nn.{layer}(x)" for layer in LAYERS), *(f"t {sign} x" for sign in ("+", "-", "*", "/", "@", "**")),
    "t[x]", "t.reshape(x)", "t.sum(x)", "t.astype(x)", "setattr(t, 'data', x)", "ag.ag_tensor(x)", "ag.ag_param(x)"])
def test_a_wrong_argument_of_an_object_is_named(call: str) -> None:
    def with_bad(bad: object) -> object:
        return made(call, x=bad, t=ag.ag_tensor(SQUARE), params=[ag.ag_param(SQUARE)])

    layer = getattr(ag.nn, call.removeprefix("nn.").partition("(")[0], None)
    own = f"({layer.__name__}|{getattr(layer, '_called', layer).__name__})" if layer else "power"
    assert not raw_errors(((what, partial(with_bad, bad)) for what, bad in BAD.items()), own)
