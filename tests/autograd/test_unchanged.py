"""A gradient is of the values that the loss was computed with, or an error names what was changed since."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers.errors import expect_error

import ag


def named(**values: float) -> dict[str, ag.Tensor]:
    """Parameters of shape (1, 1)."""
    params = {name: ag.ag_param([[x]]) for name, x in values.items()}
    for name, p in params.items():
        p.name = name
    return params


def value(t: ag.Tensor) -> float:
    return t.numpy().item()


# ---------------------------------------------------------------------------------------------- changed before backward

P = dict[str, ag.Tensor]


def assign(p: P) -> None:
    p["W"].data = [[5.0]]


def load(p: P) -> None:
    layer = ag.Layer()
    layer.W = p["W"]
    layer.load_state_dict({"W": [[5.0]]})


LOSSES: dict[str, Callable[[P], ag.Tensor]] = {
    "product": lambda p: ag.ag_sum(p["W"] * p["V"]), "matmul": lambda p: ag.ag_sum(p["W"] @ p["V"]),
    "checkpoint": lambda p: ag.ag_checkpoint(lambda: ag.ag_sum(p["W"] * p["V"])),
    "reshaped": lambda p: ag.ag_sum(p["W"] * p["V"].reshape(1, 1)),
}


@pytest.mark.parametrize("loss_of", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("change", [assign, load])
def test_a_parameter_changed_before_backward_is_named(device: str, loss_of: Callable[[P], ag.Tensor],
                                                      change: Callable[[P], None]) -> None:
    p = named(W=2.0, V=3.0)
    with ag.with_grad_tape():
        loss = loss_of(p)
    change(p)
    with expect_error("a changed parameter", ag.TapeError, "backward: parameter 'W' of shape (1, 1) was changed after"):
        ag.backward(loss)
    assert p["V"].grad is None


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_parameter_of_16_bits_changed_before_backward(device: str, dtype: str) -> None:
    W, V = ag.ag_param([[2.0]], dtype=dtype), ag.ag_param([[3.0]], dtype=dtype)
    with ag.with_grad_tape():
        loss, other = ag.ag_sum(W * V), ag.ag_sum(W + V)
    V.data = [[5.0]]
    assert value(ag.backward(other)[V]) == 1
    with expect_error("a changed parameter of 16 bits", ag.TapeError, "a parameter of shape (1, 1) was changed"):
        ag.backward(loss)


def test_a_step_between_forward_and_backward(device: str) -> None:
    p = named(W=2.0, V=3.0, b=1.0)
    optimizer = ag.optimizer_sgd(p, lr=1.0)
    with ag.with_grad_tape():
        first, second = ag.ag_sum(p["W"] * p["V"]), ag.ag_sum(p["W"] + p["b"])
    optimizer.step({"W": ag.ag_tensor([[1.0]])})
    with expect_error("a step", ag.TapeError, "parameter 'W'", "ag_mul"):
        ag.backward(first)
    assert value(ag.backward(second)[p["W"]]) == 1  # a sum needs no value


def test_a_replay_between_forward_and_backward(device: str) -> None:
    p = named(W=2.0, V=3.0)
    optimizer = ag.optimizer_sgd(p, lr=0.1)

    @ag.ag_capture
    def step(x: ag.Tensor) -> None:
        with ag.with_grad_tape():
            loss = ag.ag_sum(x * p["W"])
        optimizer.step(ag.backward(loss))
        optimizer.zero_grad()

    for k in range(4):
        step(ag.ag_tensor([[1.0 + k]]))
    with ag.with_grad_tape():
        loss = ag.ag_sum(p["W"] * p["V"])
    step(ag.ag_tensor([[1.0]]))
    with expect_error("a replay", ag.TapeError, "backward: parameter 'W' of shape (1, 1) was changed after"):
        ag.backward(loss)


def test_other_parameters_of_a_flat_buffer_may_change(device: str) -> None:
    p = named(W=2.0, V=3.0, b=1.0)
    ag.optimizer_sgd(p, lr=1.0)
    with ag.with_grad_tape():
        loss = ag.ag_sum(p["W"] * p["V"])
    p["b"].data = [[7.0]]
    assert value(ag.backward(loss)[p["W"]]) == 3


def test_only_what_a_gradient_needs_must_stay(device: str) -> None:
    W, x = ag.ag_param([[2.0]]), ag.ag_tensor([[3.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(W * x)
    W.data = [[7.0]]  # the gradient is x
    assert value(ag.backward(loss)[W]) == 3
    with ag.with_grad_tape():
        loss = ag.ag_sum(W * x)
    x.data = [[5.0]]
    with expect_error("a changed input", ag.TapeError, "a tensor of shape (1, 1) was changed"):
        ag.backward(loss)


def test_a_result_that_a_rule_saved(device: str) -> None:
    W = ag.ag_param([[2.0]])
    with ag.with_grad_tape():
        y = ag.ag_exp(W)
        loss = ag.ag_sum(y)
    y.data = [[0.0]]
    with expect_error("a changed result", ag.TapeError, "the result of ag_exp, of shape (1, 1), was changed"):
        ag.backward(loss)


def test_running_statistics(device: str) -> None:
    norm, x = ag.ag_eval(ag.ag_batch_norm(1)), ag.ag_tensor([[1.0, 2.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(norm(x))
    ag.ag_train(norm)(x)
    with expect_error("moved averages", ag.TapeError, "was changed after ag_batch_norm"):
        ag.backward(loss)


def test_averages_may_move_where_a_batch_norm_is_checkpointed(device: str) -> None:
    """In train mode its gradient needs no averages; that they are operands of the second pass is no use of them."""
    norm, W = ag.ag_batch_norm(2), ag.ag_param([[1.0, 2.0], [3.0, 5.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(ag.ag_checkpoint(lambda x: norm(x) * norm(x), W @ ag.ag_tensor([[1.0, 2.0, 4.0]] * 2)))
    norm(ag.ag_tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert W in ag.backward(loss)


def test_an_input_changed_before_a_checkpoint_is_computed_again(device: str) -> None:
    W, x = ag.ag_param([[2.0]]), ag.ag_tensor([[3.0]])
    with ag.with_grad_tape():
        loss = ag.ag_checkpoint(lambda x: ag.ag_sum(W * ag.ag_exp(x * 2.0)), x)
    x.data = [[5.0]]
    with expect_error("a changed input", ag.TapeError, "a tensor of shape (1, 1) was changed after ag_mul"):
        ag.backward(loss)


def test_moved_to_another_device() -> None:
    layer = ag.ag_linear(2, 1)
    with ag.with_grad_tape():
        loss = ag.ag_sum(layer(ag.ag_tensor([1.0, 2.0])))
    layer.parameters()
    layer.to("cpu:1")
    with expect_error("a moved parameter", ag.TapeError, "parameter 'W'", "moved to cpu:1", "on cpu."):
        ag.backward(loss)


def test_an_optimizer_made_before_backward_changes_nothing(device: str) -> None:
    W = ag.ag_param([[2.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(W * W)
    ag.optimizer_sgd([W], lr=1.0)  # the parameter moves into its flat buffer
    assert value(ag.backward(loss)[W]) == 4


def test_the_record_survives_a_refusal(device: str) -> None:
    """Put back what was changed, and it is still another value: the record counts changes and does not compare."""
    p = named(W=2.0)
    with ag.with_grad_tape():
        loss = ag.ag_sum(p["W"] * p["W"])
    assign(p)
    for _ in range(2):
        with expect_error("twice", ag.TapeError, "parameter 'W'"):
            ag.backward(loss, retain=True)


# ---------------------------------------------------------------------------------------------- memory of one's own


def losses_of_two(A: ag.Tensor, B: ag.Tensor) -> dict[str, Callable[[], ag.Tensor]]:
    """Losses whose rules give several parameters one cotangent, or one that is not theirs."""
    return {"sum": lambda: ag.ag_sum((A + B) * 10.0), "reshaped": lambda: ag.ag_sum((A + B.reshape(2, 1)) * 10.0),
            "constant": lambda: ag.ag_sum(A, dim=0).reshape() + ag.ag_sum(B, dim=0).reshape(),
            "checkpoint": lambda: ag.ag_checkpoint(lambda: ag.ag_sum(A + B) * 10.0)}


@pytest.mark.parametrize("kind", ["sum", "reshaped", "constant", "checkpoint"])
@pytest.mark.parametrize("captured", [False, True])
def test_clipping_scales_each_gradient_once(device: str, kind: str, captured: bool) -> None:
    A, B = ag.ag_param(np.ones((2, 1))), ag.ag_param(np.ones((2, 1)))

    def run() -> tuple[ag.Tensor, ag.Tensor]:
        with ag.with_grad_tape():
            loss = losses_of_two(A, B)[kind]()
        grads = ag.backward(loss)
        ag.clip_grad_norm([A, B], grads, 1.0)
        A.grad = B.grad = None
        return grads[A], grads[B]

    run = ag.ag_capture(run) if captured else run
    for _ in range(2):
        assert np.allclose([g.numpy() for g in run()], 0.5, rtol=1e-5)


def test_gradients_of_a_retained_record_are_apart(device: str) -> None:
    W, ids = ag.ag_param(np.zeros((3, 2))), np.array([0, 1])
    with ag.with_grad_tape():
        loss = ag.ag_softmax_cross_entropy_loss(W, ids)  # whose gradient is computed with the loss
    first = ag.backward(loss, retain=True)
    before = first[W].numpy()
    W.grad = None
    second = ag.backward(loss, retain=True)
    ag.clip_grad_norm([W], second, 1e-3)
    assert np.array_equal(first[W].numpy(), before)
    W.grad = None
    assert np.array_equal(ag.backward(loss)[W].numpy(), before)


def test_a_gradient_may_be_overwritten(device: str) -> None:
    p, q = ag.ag_param(3.0), ag.ag_param(4.0)
    with ag.with_grad_tape():
        loss = p + q
    grads = ag.backward(loss)
    grads[p].data = 7.0
    assert (value(grads[q]), value(ag.ag_tensor([[0.0]]) + 1.0)) == (1, 1)


def test_constants_stay_what_they_are(device: str) -> None:
    for t in (ag.ag_reshape(5.0, 1, 1), ag.ag_sum(5.0), ag.ag_max(5.0), ag.ag_slice(5.0, None), ag.ag_reshape(5.0)):
        t.data = np.full(t.shape, 7.0)
    assert value(ag.ag_tensor([[0.0]]) + 5.0) == 5


def test_writing_to_a_constant_is_refused() -> None:
    from ag.autograd.operands import lift
    from ag.engine.device import backend_of
    from ag.engine.dtype import F32

    constant = lift(5.0, backend_of("cpu"), F32, "test")
    with expect_error("a constant", ag.ArenaError, "note_written", "a constant that all ops on cpu share"):
        constant.data = 7.0
    assert value(constant) == 5


VIEWS: dict[str, Callable[[ag.Tensor], ag.Tensor]] = {
    "reshape": lambda x: x.reshape(2, 2), "reshape flat": lambda x: x.reshape(4), "flatten": ag.ag_flatten,
    "transpose": lambda x: ag.ag_transpose(x, 0, 1), "slice": lambda x: x[:, :], "ellipsis": lambda x: x[...],
    "new axis": lambda x: x[None], "sum": lambda x: ag.ag_sum(x, dim=()), "mean": lambda x: ag.ag_mean(x, dim=()),
    "max": lambda x: ag.ag_max(x, dim=()), "concat": lambda x: ag.ag_concat([x]), "detach": lambda x: x.detach(),
    "flatten layer": lambda x: ag.ag_flatten_layer()(x), "power": lambda x: x**1,
    "scale": lambda x: ag.ag_scale(x, 1.0),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_result_is_no_view_of_its_operand(device: str, view: Callable[[ag.Tensor], ag.Tensor], dtype: str) -> None:
    x = ag.ag_param([[1.0, 2.0], [3.0, 4.0]], dtype=dtype)
    y = view(x)
    before = y.numpy()
    x.data = np.full((2, 2), 9.0)
    assert np.array_equal(y.numpy(), before)
    y.data = np.full(y.shape, 5.0)
    assert np.array_equal(x.numpy(), np.full((2, 2), 9.0))


# ---------------------------------------------------------------------------------------------- read on the host


def test_data_cannot_be_written_to(device: str) -> None:
    p = ag.ag_param([[1.0, 2.0]])
    for dtype in ("f32", "f16", "bf16"):
        t = p.astype(dtype)
        with expect_error("an element of data", ValueError, "read-only"):
            t.data[0, 0] = 99
    p.data = p.data * 2
    copy = p.numpy()
    copy[0, 0] = 99
    assert p.numpy().tolist() == [[2, 4]]
