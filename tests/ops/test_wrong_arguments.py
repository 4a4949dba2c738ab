"""Give public functions arguments of the wrong kind: they raise an error that names the function, and do not guess."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag

OPS = sorted(name for name in ag.__all__ if hasattr(getattr(ag, name), "vjp") or name in (
    "ag_batch_norm_op", "ag_conv2d", "ag_embedding_lookup", "ag_global_avg_pool", "ag_softmax_cross_entropy_loss"))
IDS = ("ag_embedding_lookup", "ag_softmax_cross_entropy_loss")  # where a shape is looked at first
OTHERS = {  # what is no tensor and has no default
    "ag_slice": {"key": 0}, "ag_max_pool2d": {"size": 1}, "ag_avg_pool2d": {"size": 1}, "ag_pow": {"p": 2.0},
    "ag_scale": {"scalar": 2.0}, "ag_concat": {"tensors": [np.ones((2, 2))]},
}


def required(name: str, kind: tuple[str, ...] = ("TensorLike", "Tensor")) -> list[str]:
    parameters = inspect.signature(getattr(ag, name)).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.annotation in kind]


@pytest.mark.parametrize("name", OPS)
def test_missing_and_unknown_arguments_are_named(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}: missing a required argument"):
        getattr(ag, name)()
    with pytest.raises(TypeError, match=rf"^{name}: there is no argument 'nonsense'; its arguments are"):
        getattr(ag, name)(nonsense=1, **{n: np.ones((2, 2)) for n in required(name)}, **OTHERS.get(name, {}))


def test_what_is_no_number_is_no_id() -> None:
    with expect_error("word ids that are no numbers", ag.DtypeError, "ag_embedding_lookup: the ids are of type"):
        ag.ag_embedding_lookup(np.ones((2, 3)), "text")
    with expect_error("class numbers that are none", ag.DtypeError, "ag_softmax_cross_entropy_loss: the labels are of"):
        ag.ag_softmax_cross_entropy_loss(np.ones((2, 1)), [None])
    for call in (lambda: ag.ag_softmax_cross_entropy_loss(np.ones((3, 2)), [[0], [1, 2]]),
                 lambda: ag.ag_embedding_lookup(np.ones((3, 2)), [[0], [1, 2]])):
        with expect_error("ragged numbers", ag.ShapeError, "a list is no array", "every row must have the same length"):
            call()


@pytest.mark.parametrize(("function", "call"), [
    ("backward", ag.backward),
    ("ag_cast", lambda x: ag.ag_cast(x, "f16")),
    ("ag_to_device", lambda x: ag.ag_to_device(x, "cpu:1")),
    ("ag_gradcheck", lambda x: ag.ag_gradcheck(lambda t: ag.ag_sum(t[0]), [x])),
])
@pytest.mark.parametrize("bad", [1.0, np.ones((2, 2)), None], ids=["a number", "an array", "None"])
def test_a_tensor_is_required(function: str, call: Callable[[Any], Any], bad: Any) -> None:
    kind = type(bad).__name__
    with expect_error("what is no tensor", TypeError, f"{function}: a ", f"{kind} was given", "ag_tensor"):
        call(bad)


DATA = np.ones((2, 3), np.float32)
SIZES: dict[str, Callable[[Any], Any]] = {
    "ag_linear: in_features": lambda n: ag.ag_linear(n, 2),
    "ag_linear: in_features is 2 and out_features": lambda n: ag.ag_linear(2, n),
    "ag_embedding: vocab_size": lambda n: ag.ag_embedding(n, 2),
    "ag_embedding: vocab_size is 2 and dim": lambda n: ag.ag_embedding(2, n),
    "ag_batch_norm: num_features": ag.ag_batch_norm,
    "ag_layer_norm: num_features": ag.ag_layer_norm,
    "ag_rms_norm: num_features": ag.ag_rms_norm,
    "ag_conv2d_layer: in_ch": lambda n: ag.ag_conv2d_layer(n, 2, 3),
    "ag_conv2d_layer: in_ch is 2 and out_ch": lambda n: ag.ag_conv2d_layer(2, n, 3),
    "ag_multihead_attention: d_model": lambda n: ag.ag_multihead_attention(n, 1),
    "ag_multihead_attention: d_model is 2 and n_heads": lambda n: ag.ag_multihead_attention(2, n),
    "ag_dataloader: batch_size": lambda n: ag.ag_dataloader(DATA, batch_size=n),
    "ag_dataloader: batch_size is 2 and prefetch": lambda n: ag.ag_dataloader(DATA, batch_size=2, prefetch=n),
}


@pytest.mark.parametrize("bad", [1.5, -1, float("nan"), float("inf"), "2", None], ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_whole_numbers(name: str, bad: Any) -> None:
    with expect_error(f"{name} is {bad!r}", ValueError, f"{name} ", repr(bad), "whole"):
        SIZES[name](bad)
    SIZES[name](np.int64(1))


@pytest.mark.parametrize("step", [-1, 1.5, float("nan"), "3"], ids=str)
def test_the_step_of_a_checkpoint(step: Any, tmp_path: Path) -> None:
    with expect_error(f"ag_save_checkpoint(step={step!r})", ValueError, f"ag_save_checkpoint: step is {step!r}"):
        ag.ag_save_checkpoint(tmp_path / "c", ag.ag_linear(1, 1), step=step)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("eps", [0.0, -1e-5, float("nan"), float("inf")])
def test_the_step_of_gradcheck(eps: float) -> None:
    with expect_error(f"ag_gradcheck(eps={eps})", ValueError, f"ag_gradcheck: eps is {eps}", "1e-5"):
        ag.ag_gradcheck(lambda x: ag.ag_sum(x[0]), [ag.ag_param([[1.0]])], eps=eps)


@pytest.mark.parametrize("bad", [[[1j]], [["a"]], [[None]]], ids=["complex", "text", "None"])
def test_only_numbers_are_assigned(device: str, bad: Any) -> None:
    t = ag.ag_tensor([[1.0]])
    with expect_error("something that is no number is assigned", ag.DtypeError, "data: an array of type", "numbers"):
        t.data = bad
    assert t.item() == 1.0


def test_sizes_in_order_are_not_bound_by_inspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as long as a launch; by name, and wrong, they are."""
    x, bind = ag.ag_tensor(np.zeros((2, 3))), inspect.Signature.bind
    asked: list[object] = []
    monkeypatch.setattr(inspect.Signature, "bind", lambda *args, **named: asked.append(args) or bind(*args, **named))
    assert ag.ag_reshape(x, 3, 2).shape == ag.ag_reshape(x, (3, 2)).shape and not asked
    with pytest.raises(TypeError, match="ag_reshape"):
        ag.ag_reshape(x, size=(3, 2))
    with pytest.raises(TypeError, match="ag_reshape"):
        ag.ag_reshape()
    assert asked
