"""ag_gradcheck accepts right gradients, refuses wrong ones, and says what it found."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.autograd.op import Result, Run, op
from ag.autograd.tensor import OPS, Tensor
from ag.engine.buffer import Buffer
from ag.engine.kernels.elementwise import scale
from ag.ops.arithmetic import mul

Inputs = dict[str, Tensor]


@pytest.fixture
def wrong_square() -> Any:
    """The square with the gradient x instead of 2 x."""

    @op
    def wrong_square(run: Run, x: Buffer) -> Result[Buffer]:
        return run(mul, x, x), x

    @wrong_square.vjp
    def _(run: Run, g: Buffer, saved: Buffer, need: tuple[bool, ...]) -> tuple[Buffer]:
        return (run(scale, run(mul, g, saved), factor=1.0),)

    yield wrong_square
    del OPS["wrong_square"]


def regression(t: Inputs) -> Tensor:
    return ag.ag_mse_loss(ag.ag_tanh(ag.ag_matmul(t["W"], t["x"]) + t["b"]), t["y"])


def inputs() -> Inputs:
    rng = np.random.default_rng(0)
    return {"W": ag.ag_param(rng.standard_normal((2, 3))), "x": ag.ag_tensor(rng.standard_normal((3, 4))),
            "b": ag.ag_param(rng.standard_normal((2, 1))), "y": ag.ag_tensor(rng.standard_normal((2, 4)))}


def test_right_gradients_pass(device: str) -> None:
    assert ag.ag_gradcheck(regression, inputs(), atol=1e-8, rtol=1e-6, quiet=True) is True


def test_wrong_gradients_fail(wrong_square: Any) -> None:
    x = ag.ag_param([[1.0, -2.0]])
    assert ag.ag_gradcheck(lambda t: ag.ag_sum(wrong_square(t["x"])), {"x": x}, quiet=True) is False


def test_one_wrong_gradient_among_right_ones_fails(wrong_square: Any, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = ag.ag_param([[1.0]]), ag.ag_param([[3.0]])
    assert not ag.ag_gradcheck(lambda t: ag.ag_sum(t["a"] * t["a"] + wrong_square(t["b"])), {"a": a, "b": b})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("a: ok, largest difference")
    assert second.startswith("b: 1 of 1 wrong, largest difference 3")


def test_a_parameter_that_is_not_used_has_gradient_zero() -> None:
    a, b = ag.ag_param([[1.0]]), ag.ag_param([[3.0]])
    assert ag.ag_gradcheck(lambda t: ag.ag_sum(t["a"]), {"a": a, "b": b}, quiet=True)


def test_a_gradient_that_is_missing_fails() -> None:
    x = ag.ag_param([[1.0]])
    assert not ag.ag_gradcheck(lambda t: ag.ag_sum(t["x"].detach() * 2.0 + t["x"] * 0.0), {"x": x}, quiet=True)


def test_verbose_lists_every_entry(capsys: pytest.CaptureFixture[str]) -> None:
    assert ag.ag_gradcheck(lambda t: ag.ag_sum(t["x"] ** 2), {"x": ag.ag_param([[1.0, 2.0]])}, verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ["  x[0, 0]: analytic 2, numeric 2", "  x[0, 1]: analytic 4, numeric 4"]


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert ag.ag_gradcheck(lambda t: ag.ag_sum(t["x"] ** 2), {"x": ag.ag_param([[1.0]])}, quiet=True)
    assert capsys.readouterr().out == ""


def test_the_inputs_are_left_alone(device: str) -> None:
    given = inputs()
    before = {k: t.numpy() for k, t in given.items()}
    ag.ag_gradcheck(regression, given, quiet=True)
    for k, t in given.items():
        np.testing.assert_array_equal(t.numpy(), before[k])
        assert (t.grad, t.dtype, t.device) == (None, "f32", device)


def test_no_input_to_check() -> None:
    with expect_error("a gradient check without a parameter", ValueError, "ag_gradcheck: no input", "ag_param"):
        ag.ag_gradcheck(lambda t: ag.ag_sum(t["x"]), {"x": ag.ag_tensor([1.0])})


def test_float32_from_outside_is_refused() -> None:
    outside = ag.ag_tensor([[2.0]])
    with expect_error("a gradient check that mixes in float32", ag.DtypeError, "f64", "f32"):
        ag.ag_gradcheck(lambda t: ag.ag_sum(t["x"] * outside), {"x": ag.ag_param([[1.0]])}, quiet=True)


def test_it_reports_on_any_stream_under_any_seterr(monkeypatch: pytest.MonkeyPatch) -> None:
    W = ag.ag_param([[1e-306, 2.0]])
    latin = io.TextIOWrapper(io.BytesIO(), "latin-1")
    for stream in (None, latin, SimpleNamespace(write=None)):
        monkeypatch.setattr("sys.stdout", stream)
        with np.errstate(all="raise"):
            assert ag.ag_gradcheck(lambda t: ag.ag_sum(t["\u03bb"] * 1e-306), {"\u03bb": W})
            assert not ag.ag_gradcheck(lambda t: ag.ag_sum(ag.ag_exp(t["\u03bb"] * 400.0)), {"\u03bb": W})
    latin.flush()
    assert b"\\u03bb: ok" in latin.buffer.getvalue()  # type: ignore[attr-defined]


def test_what_is_no_function_or_no_inputs() -> None:
    W = ag.ag_param([[1.0]])
    for fn, inputs, why in ((None, [W], "fn is a NoneType"), (ag.ag_sum, None, "inputs is a NoneType"),
                            (ag.ag_sum, W, "inputs is a ag.autograd.tensor.Tensor")):
        with expect_error("a wrong argument", TypeError, f"ag_gradcheck: {why}"):
            ag.ag_gradcheck(fn, inputs)  # type: ignore[arg-type]
