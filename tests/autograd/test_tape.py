"""The tape: nesting, threads, what backward may be asked, and what it returns."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from helpers.errors import expect_error

import ag


def square_sum(x: ag.Tensor) -> ag.Tensor:
    """A recorded loss with gradient 2 x."""
    with ag.with_grad_tape():
        return ag.ag_sum(x * x)


# ---------------------------------------------------------------------------------------------- recording


def test_nothing_is_recorded_outside() -> None:
    x = ag.ag_param([[2.0]])
    assert not (x * x).requires_grad
    with ag.with_grad_tape():
        assert (x * x).requires_grad
    assert not (x * x).requires_grad


def test_only_what_touches_a_parameter_is_recorded() -> None:
    x = ag.ag_tensor([[2.0]])
    with ag.with_grad_tape():
        assert (x * x).node is None


def test_tapes_nest() -> None:
    # in ggmlR the inner tape wipes what the outer one recorded
    x = ag.ag_param([[3.0]])
    with ag.with_grad_tape():
        y = x * x
        with ag.with_grad_tape():
            inner = ag.ag_sum(x * 2.0)
        assert ag.backward(inner)[x].item() == 2
        loss = ag.ag_sum(y * 5.0)
    assert ag.backward(loss)[x].item() == 30


def test_a_function_runs_on_a_tape_of_its_own() -> None:
    x = ag.ag_param([[3.0]])
    loss = ag.with_grad_tape(lambda: ag.ag_sum(x * x))
    assert ag.backward(loss)[x].item() == 6


def test_recording_ends_with_an_error() -> None:
    x = ag.ag_param([[3.0]])
    with pytest.raises(ZeroDivisionError), ag.with_grad_tape():
        raise ZeroDivisionError
    assert not (x * x).requires_grad


def test_no_grad_inside_a_tape() -> None:
    x = ag.ag_param([[3.0]])
    with ag.with_grad_tape():
        with ag.no_grad():
            constant = x * x
        loss = ag.ag_sum(constant * x)
    assert not constant.requires_grad
    assert ag.backward(loss)[x].item() == 9


def test_detached_values_are_constants() -> None:
    x = ag.ag_param([[3.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum((x * x).detach() * x)
    assert ag.backward(loss)[x].item() == 9


def test_each_thread_has_its_own_tape() -> None:
    x = ag.ag_param([[3.0]])
    seen: dict[str, bool] = {}

    def other() -> None:
        seen["at first"] = (x * x).requires_grad
        with ag.with_grad_tape():
            seen["inside"] = (x * x).requires_grad
            recorded.set()
            leave.wait(10)
        seen["after"] = (x * x).requires_grad

    recorded, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=other)
    with ag.with_grad_tape():
        thread.start()
        assert recorded.wait(10)
    assert not (x * x).requires_grad
    leave.set()
    thread.join(10)
    assert seen == {"at first": False, "inside": True, "after": False}


# ---------------------------------------------------------------------------------------------- losses


def test_a_loss_has_one_element() -> None:
    x = ag.ag_param([[1.0, 2.0]])
    with ag.with_grad_tape():
        y = x * x
    with expect_error("backward of a loss with several elements", ag.TapeError, "backward", "(1, 2)", "ag_sum"):
        ag.backward(y)
    assert x.grad is None


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_one_element_of_any_shape_is_a_loss(shape: tuple[int, ...]) -> None:
    x = ag.ag_param([[3.0]])
    with ag.with_grad_tape():
        loss = (x * x).reshape(*shape) if shape else ag.ag_sum(x * x)
    assert ag.backward(loss)[x].numpy().tolist() == [[6.0]]


def test_a_loss_that_was_not_recorded() -> None:
    x = ag.ag_param([[3.0]])
    for loss in (ag.ag_sum(x * x), x, ag.ag_tensor([[1.0]])):
        with expect_error("backward of a loss that was not recorded", ag.TapeError, "not recorded", "with_grad_tape"):
            ag.backward(loss)


def test_backward_twice() -> None:
    x = ag.ag_param([[3.0]])
    loss = square_sum(x)
    ag.backward(loss)
    with expect_error("backward twice over the same record", ag.TapeError, "ag_sum", "retain=True"):
        ag.backward(loss)
    assert x.grad is not None
    assert x.grad.item() == 6


def test_backward_through_a_shared_part_that_was_used_up() -> None:
    x = ag.ag_param([[3.0]])
    with ag.with_grad_tape():
        y = x * x
        first, second = ag.ag_sum(y), ag.ag_mean(y)
    ag.backward(first)
    with expect_error("backward through a part that an earlier backward used up", ag.TapeError, "ag_mul", "retain"):
        ag.backward(second)


def test_a_failed_backward_changes_no_gradient() -> None:
    x, z = ag.ag_param([[3.0]]), ag.ag_param([[5.0]])
    with ag.with_grad_tape():
        y = x * x
        first, second = ag.ag_sum(y), ag.ag_sum(y + z)
    ag.backward(first)
    with pytest.raises(ag.TapeError):
        ag.backward(second)
    assert z.grad is None


# ---------------------------------------------------------------------------------------------- gradients


def test_a_parameter_used_often_gets_its_gradient_once(device: str) -> None:
    # in ggmlR .grad of a shared tensor is doubled
    x = ag.ag_param([[3.0]])
    with ag.with_grad_tape():
        y = x * x
        loss = ag.ag_sum(y * y + x * y + x)  # x^4 + x^3 + x
    grads = ag.backward(loss)
    assert grads[x].item() == 4 * 27 + 3 * 9 + 1
    assert x.grad is not None
    assert x.grad.item() == grads[x].item()


def test_both_operands_may_be_the_same_parameter(device: str) -> None:
    x = ag.ag_param([[3.0]])
    for op, slope in [(ag.ag_add, 2), (ag.ag_sub, 0), (ag.ag_mul, 6), (ag.ag_div, 0), (ag.ag_matmul, 6)]:
        with ag.with_grad_tape():
            loss = ag.ag_sum(op(x, x))
        assert ag.backward(loss)[x].item() == slope


def test_gradients_sum_over_calls_and_the_mapping_holds_one_call() -> None:
    x = ag.ag_param([[3.0]])
    first = ag.backward(square_sum(x))
    second = ag.backward(square_sum(x))
    assert (first[x].item(), second[x].item()) == (6, 6)
    assert x.grad is not None
    assert x.grad.item() == 12


def test_parameters_that_are_not_reached_keep_their_gradient() -> None:
    x, other = ag.ag_param([[3.0]]), ag.ag_param([[5.0]])
    ag.backward(square_sum(other))
    before = other.grad
    grads = ag.backward(square_sum(x))
    assert other not in grads
    assert other.grad is before
    with expect_error("the gradient of a parameter that the loss does not reach", KeyError, "not depend", "(1, 1)"):
        grads[other]
    assert len(grads) == 1
    assert list(grads) == [x]


def test_intermediate_tensors_keep_no_gradient() -> None:
    x = ag.ag_param([[3.0]])
    with ag.with_grad_tape():
        y = x * x
        loss = ag.ag_sum(y)
    assert y not in ag.backward(loss)
    assert y.grad is None


def test_gradients_by_name() -> None:
    model = ag.ag_sequential(ag.ag_linear(2, 3, "tanh"), ag.ag_linear(3, 1))
    parameters = model.parameters()
    with ag.with_grad_tape():
        loss = ag.ag_sum(model(ag.ag_tensor([[1.0], [2.0]])))
    grads = ag.backward(loss)
    assert len(grads) == 4
    for name, p in parameters.items():
        assert name in grads
        np.testing.assert_array_equal(grads[name].numpy(), grads[p].numpy())
        assert grads[p].shape == p.shape
    assert "layer3_W" not in grads
    for key in (None, 3, ["layer1_W"]):
        assert key not in grads and grads.get(key) is None  # type: ignore[call-overload]
        with expect_error("a key that is neither a parameter nor a name", KeyError, "a parameter or its name"):
            grads[key]  # type: ignore[index]
    with expect_error("the gradient of a name that no parameter has", KeyError, "'layer3_W'", "layer1_W, layer1_b"):
        grads["layer3_W"]


def test_broadcasting_is_undone(device: str) -> None:
    row, column = ag.ag_param([[1.0, 2.0, 3.0]]), ag.ag_param([[1.0], [2.0]])
    with ag.with_grad_tape():
        loss = ag.ag_sum(row * column)
    grads = ag.backward(loss)
    assert grads[row].numpy().tolist() == [[3.0, 3.0, 3.0]]
    assert grads[column].numpy().tolist() == [[6.0], [6.0]]


def test_gradients_flow_between_devices(device: str) -> None:
    x = ag.ag_param([[3.0]])
    with ag.with_grad_tape():
        y = ag.ag_to_device(x * x, "cpu:1")
        loss = ag.ag_sum(y * 2.0)
    grads = ag.backward(loss)
    assert (loss.device, grads[x].device, grads[x].item()) == ("cpu:1", device, 12)


@pytest.mark.parametrize("held", [
    {"data": np.ones((1, 2))}, {"data": np.ones((2, 2)), "dtype": "i32"}, {"data": np.ones((2, 2)), "device": "cpu:1"}],
    ids=["shape", "type", "device"])
def test_a_gradient_is_not_added_to_another_kind_of_tensor(device: str, held: dict[str, object]) -> None:
    """A wrong ``.grad`` of the user is only seen when the next gradient is added to it."""
    p = ag.ag_param(np.ones((2, 2)))
    p.grad = ag.ag_tensor(**held)  # type: ignore[arg-type]
    with ag.with_grad_tape():
        loss = ag.ag_sum(p * 2.0)
    with expect_error("a .grad that does not fit", ag.TapeError, "backward: the gradient is added to .grad of",
                      "shape (2, 2) and type f32"):
        ag.backward(loss)


def test_a_gradient_is_not_added_to_an_array() -> None:
    p = ag.ag_param(np.ones((2, 2)))
    p.grad = np.ones((2, 2))  # type: ignore[assignment]
    with ag.with_grad_tape():
        loss = ag.ag_sum(p * 2.0)
    with expect_error("a .grad that is no tensor", ag.TapeError, "a ndarray", "or to None"):
        ag.backward(loss)
