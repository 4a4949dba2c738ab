"""Computing with numpy in a captured step gives the bits of the eager step, or is refused by name."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import ag
from ag import nn

W = ag.ag_tensor([2.0])
M = np.asfortranarray(np.random.default_rng(9).standard_normal((300, 400)).astype("f4"))
MASK = np.ones(2000, "f4")


def arrays(*shape: int) -> list[np.ndarray]:
    return [np.random.default_rng(k).standard_normal(shape).astype("f4") for k in range(9)]


def outcome(step: Callable[..., Any], args: tuple[Any, ...]) -> object:
    try:
        return step(*args).numpy().tobytes()
    except ag.CaptureError:
        return "refused"
    except Exception as error:  # noqa: BLE001 - compared with that of the other
        return type(error)


def compare(function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[object]:
    """Return what calls of the captured step gave: the bits or the error of the eager call, or "refused"."""
    step, found = ag.ag_capture(function), []
    for k, args in enumerate(calls):
        expected = outcome(function, args)
        found.append(outcome(step, args))
        assert found[-1] in (expected, "refused"), f"call {k + 1}"
    return found


def parts(x: Any) -> Any:
    x[:2, :3]
    return W * x[:3, :2]


def slices(x: Any, i: Any) -> Any:
    first = x[:2]
    return W * first + x[i[0]:i[0] + 2]


def looks(x: Any, i: Any) -> Any:
    x[i]
    return W * x


def doubled(x: Any) -> Any:
    for _ in range(60):
        x = x + x
    return W * x


def chain(x: Any) -> Any:
    for _ in range(300):
        x = x * np.float32(1.01)
    return W * x


NUMBERS = [(np.arange(9.0), np.array([k])) for k in (0, 0, 3, 1, 2, 0, 4, 3, 5)]
INDEX = [(np.ones(3, "f4"), np.array([i])) for i in (0, 0, 9, 0, 1, 9)]
ROWS = [(np.array(r, "f4"),) for r in ([1, 2, -1], [1, 2, -1], [1, -2, -1], [1, 2, 3], [-1, -1, 2], [1, 2, -1])]
REPLAYED: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "parts of one place": (parts, [(x,) for x in arrays(6, 6)]),
    "slices at numbers": (slices, NUMBERS),
    "a length that depends on values": (lambda x: ag.ag_sum(W * x) / len(x[x > 0]), ROWS),
    "an error of a later call": (looks, INDEX),
    "a transposed argument": (lambda x: W * x.sum(), [(x.T,) for x in arrays(37, 53)]),
    "a sliced argument": (lambda x: W * x.sum() + x.mean(), [(x[::-2, 3:30],) for x in arrays(37, 53)]),
    "a broadcast argument": (lambda x: W * x.sum(), [(np.broadcast_to(x, (9, 53)),) for x in arrays(53)]),
    "in the order of memory": (lambda x: W * x.ravel("K"), [(x.T,) for x in arrays(37, 53)]),
    "in another order later": (lambda x: W * x.ravel("K"), [(x.T if k % 3 else x.T.copy(),)
                                                             for k, x in enumerate(arrays(37, 53))]),
    "a product with an array": (lambda x: W * (x @ M), [(x,) for x in arrays(1, 300)]),
    "doublings": (doubled, [(x,) for x in arrays(3)]), "a chain": (chain, [(x,) for x in arrays(3)]),
    "every second": (lambda x: W * x[::2], [(x,) for x in arrays(8)]),
    "backwards": (lambda x: W * x[::-1], [(x,) for x in arrays(8)]),
    "a column": (lambda x: W * x[:, 0], [(x,) for x in arrays(4, 3)]),
    "a float64 number": (lambda x: W * x.mean(), [(x.astype("f8"),) for x in arrays(4)]),
    "no elements": (lambda x: ag.ag_concat([W * x[:2], W * x[5:]]), [(x,) for x in arrays(4)]),
}


@pytest.mark.parametrize("case", REPLAYED)
def test_it_has_the_bits_of_the_eager_step(case: str) -> None:
    assert "refused" not in compare(*REPLAYED[case])


def catches(x: Any, i: Any) -> Any:
    try:
        np.take(x, i)
    except IndexError:
        return W * x * 0
    return W * x


def falls_back(x: Any, i: Any) -> Any:
    try:
        y = x[i]
    except IndexError:
        y = x[:1]
    return W * y


def raises(x: Any) -> Any:
    with np.errstate(all="raise"):
        return W * (1 / x)


def filters(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return W * (1 / x)


def writes(x: Any) -> Any:
    y = x * 1
    first = W * y
    return first + W * np.median(y, overwrite_input=True)


def out_by_place(x: Any) -> Any:
    b = np.zeros(x.shape, "f4")
    np.clip(x, 0, 1, b)
    b *= 10
    return W * b


def own_changed(x: Any) -> Any:
    b = np.zeros(x.shape, "f4")
    y = x + b
    b += 1
    return W * (y + b)


FRACTIONS = [(np.array([v], "f4"),) for v in (1, 2, 0, 3, 0)]
REFUSED: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "an error that is caught later": (catches, INDEX),
    "an error that is caught at first": (falls_back, [(np.arange(4, dtype="f4"), np.array([i])) for i in (9, 9, 3, 2)]),
    "handling of errors": (raises, FRACTIONS), "filters of warnings": (filters, FRACTIONS),
    "in place": (lambda x: W * np.nan_to_num(x * 1, copy=False), [(x,) for x in arrays(3)]),
    "an argument in place": (lambda x: W * np.median(x, overwrite_input=True), [(x,) for x in arrays(3)]),
    "input that is overwritten": (writes, [(x,) for x in arrays(9)]),
    "out by its place": (out_by_place, [(x,) for x in arrays(3)]),
    "out of a method": (lambda x: W * x.clip(0, 1, np.zeros(3, "f4")), [(x,) for x in arrays(3)]),
    "an own array that changes": (own_changed, [(x,) for x in arrays(3)]),
    "its text": (lambda x: W * x * len(str(x)), [(x,) for x in arrays(3)]),
    "identity of a truth": (lambda x: W * x * (1 if (x > 0).any() is np.True_ else 2), [(x,) for x in arrays(3)]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused(case: str) -> None:
    function, calls = REFUSED[case]
    assert case == "an error that is caught later" or "refused" in compare(function, calls)


def test_an_array_that_the_caller_changes() -> None:
    step = ag.ag_capture(lambda x: W * (x * MASK))
    for k in range(9):
        MASK[:] = 1.0 if k < 2 else k
        x = np.full(2000, k, "f4")
        assert step(x).numpy().tobytes() == (2.0 * x * MASK).astype("f4").tobytes()


def test_a_write_whose_refusal_the_step_catches() -> None:
    def step(x: Any) -> ag.Tensor:
        with suppress(ag.CaptureError):
            x += 1
        return W * x

    captured = ag.ag_capture(step)
    with pytest.raises(ag.CaptureError, match="reads or changes"):
        captured(np.ones(3, "f4"))
    assert captured(np.ones(3, "f4")).numpy()[0] == 4.0  # uncaptured


def test_an_array_that_the_step_changes() -> None:
    buffer = np.zeros(2000, "f4")

    def step(x: Any) -> ag.Tensor:
        buffer[:] += 1
        return W * (x + buffer)

    captured, x = ag.ag_capture(step), np.ones(2000, "f4")
    assert captured(x).numpy()[0] == 4.0
    with pytest.raises(ag.CaptureError, match="did something else"):
        captured(x)


def test_another_function_is_noticed() -> None:
    kind = {"op": np.add}
    step = ag.ag_capture(lambda x: W * kind["op"].reduce(x))
    for k in range(9):
        kind["op"] = np.maximum if k > 3 else np.add
        x = np.array([1, 2, k], "f4")
        assert step(x).item() == 2.0 * kind["op"].reduce(x)


@pytest.mark.parametrize("made", [lambda x: x, lambda x: x + 0], ids=["given", "made"])
def test_an_upload_that_fails_comes_after_what_the_step_does_before(made: Callable[[Any], Any]) -> None:
    grads = []
    for wrap in (lambda f: f, ag.ag_capture):
        p = ag.ag_param(np.ones((1, 1), "f4"))

        def fn(x: Any, p: ag.Tensor = p) -> ag.Tensor:
            with ag.with_grad_tape():
                loss = ag.ag_sum(p * 2)
            ag.backward(loss)
            return ag.ag_tensor(made(x), dtype="i32")

        f = wrap(fn)
        for k in range(4):
            f(np.array([k]))
        with pytest.raises(ag.DtypeError):
            f(np.array([2**40]))
        grads.append(p.grad.item())
    assert grads == [10.0, 10.0]


@pytest.mark.parametrize("order", ["C", "F"])
def test_dp_train_with_numpy_in_its_functions(order: Any) -> None:
    rows = [[1, 2, 3, -1, -4 if k == 5 else 2] for k in range(24)]
    data = [(np.array([row, row[::-1]], "f4", order=order), np.array([k % 3, k % 2])) for k, row in enumerate(rows)]

    def forward(m: Any, s: Any) -> ag.Tensor:
        return m(s[0].T) * (1.0 / len(s[0][s[0] > 0])) + s[0].mean(0).sum()

    results = [ag.dp_train(lambda: nn.Sequential(nn.Linear(5, 3)), data, ag.ag_softmax_cross_entropy_loss,
                           forward_fn=forward, target_fn=lambda s: s[1], n_iter=7, devices=["cpu"], seed=3,
                           capture=capture, verbose=False, shuffle=False) for capture in (False, "auto", True)]
    weights = [[p.numpy().tobytes() for p in r.model.parameters().values()] for r in results]
    assert weights[0] == weights[1] == weights[2]
