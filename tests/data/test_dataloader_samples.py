"""The data loader over samples that are made when asked for: the same batches as from an array, and never too early."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from array import array
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from hypothesis import given, settings
from hypothesis import strategies as st

import ag

ROOT = Path(__file__).resolve().parents[2]
X = np.arange(40, dtype=np.float32).reshape(4, 10)  # sample k is column k, and starts with k
IDS = np.arange(10) * 7


class Made:
    """`n` samples that `make` makes; remembers which were asked for, in which threads."""

    def __init__(self, make: Callable[[int], Any], n: int = 10) -> None:
        self.make = make
        self.n = n
        self.asked: list[int] = []
        self.threads: set[threading.Thread] = set()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        assert type(i) is int and 0 <= i < self.n
        self.asked.append(i)
        self.threads.add(threading.current_thread())
        return self.make(i)


@pytest.fixture
def f64() -> Iterator[None]:
    """The default element type f64."""
    previous = ag.ag_dtype("f64")
    yield
    ag.ag_dtype(previous)


def columns() -> Made:
    return Made(lambda i: X[:, i])


def pairs() -> Made:
    return Made(lambda i: (X[:, i], IDS[i]))


def first(x: Any, y: Any = None, **options: Any) -> ag.Batch:
    return next(iter(ag.ag_dataloader(x, y, batch_size=4, shuffle=False, **options)))


def firsts(loader: ag.ag_dataloader) -> list[int]:
    """The numbers of the samples of the rest of an epoch, in order."""
    return [int(v) for batch in loader for v in batch.x.numpy()[0]]


def assert_equal(a: ag.Batch, b: ag.Batch) -> None:
    np.testing.assert_array_equal(a.x.numpy(), b.x.numpy(), strict=True)
    assert type(a.y) is type(b.y)
    np.testing.assert_array_equal(np.asarray(a.y), np.asarray(b.y), strict=True)


@settings(max_examples=75, derandomize=True, deadline=None)
@given(shape=st.lists(st.integers(1, 3), max_size=3), of_y=st.sampled_from([None, (), (3,), (2, 2)]),
       floats=st.booleans(), n=st.integers(1, 12), batch_size=st.integers(1, 13), form=st.sampled_from(
           ["made", "list", "tuple", "x made", "y made", "pairs", "list of pairs"]),
       options=st.fixed_dictionaries({"shuffle": st.booleans(), "drop_last": st.booleans(), "col_major": st.booleans(),
                                      "prefetch": st.integers(0, 3), "seed": st.integers(0, 99)}))
def test_the_same_batches_as_from_an_array(shape: list[int], of_y: tuple[int, ...] | None, floats: bool, n: int,
                                           batch_size: int, form: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(*shape, n)).astype(np.float32)
    y = None if of_y is None else rng.normal(size=(*of_y, n)) if floats else rng.integers(0, 9, (*of_y, n))
    axis = -1 if options["col_major"] else 0
    x_array, y_array = np.moveaxis(x, -1, axis), None if y is None else np.moveaxis(y, -1, axis)
    x_made, y_made = Made(lambda i: x[..., i], n), None if y is None else Made(lambda i: y[..., i], n)
    both = Made(lambda i: x[..., i] if y is None else (x[..., i], y[..., i]), n)
    given_as = {"made": (x_made, y_made), "x made": (x_made, y_array), "y made": (x_array, y_made), "pairs": (both,),
                "list": (list(np.moveaxis(x, -1, 0)), y_array), "tuple": (tuple(np.moveaxis(x, -1, 0)), y_made),
                "list of pairs": ([both[i] for i in range(n)],)}[form]
    from_array = ag.ag_dataloader(x_array, y_array, batch_size, **options)
    made = ag.ag_dataloader(*given_as, batch_size=batch_size, **options)
    assert len(made) == len(from_array)
    for _ in range(2):
        for a, b in zip(from_array, made, strict=True):
            assert_equal(a, b)
    assert made.state_dict() == from_array.state_dict()


def test_shapes_and_types(device: str) -> None:
    def of(sample: Any, target: Any) -> tuple[Any, Any]:
        batch = first(Made(lambda i: sample), Made(lambda i: target))
        assert (batch.x.device, batch.x.dtype) == (device, "f32")
        return batch.x.shape, batch.y.shape if ag.is_ag_tensor(batch.y) else (batch.y.dtype.kind, batch.y.shape)

    assert of(2.5, 1) == ((1, 4), ("i", (4,)))
    assert of(3, 0.5) == ((1, 4), (1, 4))
    assert of([1, 2, 3], np.uint8(1)) == ((3, 4), ("u", (4,)))
    assert of((1, 2), True) == ((2, 4), ("b", (4,)))
    assert of(np.ones((3, 5, 6), np.uint8), np.ones((2, 3), int)) == ((3, 5, 6, 4), ("i", (2, 3, 4)))
    assert of(np.ones((5, 1)), np.ones((5, 1))) == ((5, 1, 4), (5, 1, 4))
    assert of(ag.ag_tensor([1.0, 2.0]), ag.ag_tensor([1.0, 2.0])) == ((2, 4), (2, 4))  # ag has columns for vectors
    assert of(ag.ag_tensor(np.ones((2, 3, 1))), ag.ag_tensor(3.0)) == ((2, 3, 1, 4), (1, 4))


def test_a_batch_has_the_default_dtype(f64: None) -> None:
    batch = first(Made(lambda i: i / 3), Made(lambda i: i / 3), prefetch=2)
    assert batch.x.dtype == batch.y.dtype == "f64" and batch.x.numpy()[0, 1] == batch.y.numpy()[0, 1] == 1 / 3


@pytest.mark.parametrize("col_major", [True, False])
def test_a_list_of_arrays_is_a_list_of_samples(col_major: bool) -> None:
    # a square one, that could be taken for an array of samples on the last axis
    square = [X[:, i] for i in range(4)]
    assert np.array_equal(first(square, col_major=col_major).x.numpy(), X[:, :4])
    assert np.array_equal(first([ag.ag_tensor(v) for v in square], col_major=col_major).x.numpy(), X[:, :4])
    assert first([np.float32(3), np.array(4.0)], col_major=col_major).x.numpy().tolist() == [[3, 4]]


def test_plain_numbers_are_an_array() -> None:
    rows = [[1, 2, 3, 4], (5, 6, 7, 8.5)]
    for x in (rows, tuple(rows), [[np.float64(v) for v in row] for row in rows]):
        assert first(x).x.numpy().tolist() == [[1, 2, 3, 4], [5, 6, 7, 8.5]]
        assert first(x, col_major=False).x.numpy().tolist() == [[1, 5], [2, 6], [3, 7], [4, 8.5]]
    for ids in (range(4), array("i", range(4)), [0, 1, 2, 3]):
        assert first(ids, ids).x.shape == (1, 4) and first(ids, ids).y.tolist() == [0, 1, 2, 3]


def test_pairs_of_other_kinds() -> None:
    named = namedtuple("named", "image label")
    assert_equal(first(Made(lambda i: named(X[:, i], IDS[i]))), first(X, IDS))
    alone = first(Made(lambda i: (X[:, i],)))  # as PyTorch's TensorDataset of one tensor
    assert alone.y is None and np.array_equal(alone.x.numpy(), X[:, :4])
    assert first(Made(lambda i: (i, i)), IDS).x.shape == (2, 4)  # with y, a tuple is a sample of two numbers


def test_a_sample_is_made_when_asked_for_and_once() -> None:
    samples = columns()
    loader = ag.ag_dataloader(samples, IDS, batch_size=3, seed=1)
    assert samples.asked == [] and len(loader) == 4
    order = loader.order.tolist()
    for k in range(4):
        loader.next_batch()
        assert samples.asked == order[: 3 * (k + 1)]


def test_prefetching_makes_each_sample_once_and_few_ahead() -> None:
    samples = columns()
    loader = ag.ag_dataloader(samples, batch_size=2, seed=1, prefetch=2)
    order = loader.order.tolist()
    for k, _ in enumerate(loader):
        assert len(samples.asked) <= 2 * (k + 1 + 2)
    assert samples.asked == order


@pytest.mark.parametrize("prefetch", [0, 2])
def test_resuming_makes_only_the_samples_that_are_left(prefetch: int) -> None:
    loader = ag.ag_dataloader(pairs(), batch_size=3, seed=5)
    firsts(loader)
    loader.next_batch()
    state, left = loader.state_dict(), loader.order.tolist()[3:]
    expected = firsts(loader)
    samples = pairs()
    resumed = ag.ag_dataloader(samples, batch_size=3, seed=99, prefetch=prefetch)
    resumed.load_state_dict(state)
    assert samples.asked == []
    assert firsts(resumed) == left == samples.asked
    assert firsts(resumed) == expected


@pytest.mark.parametrize("prefetch", [0, 2])
def test_samples_that_are_made_in_the_same_memory(prefetch: int) -> None:
    memory, row, tensor = np.zeros(4, np.float32), [0.0] * 4, ag.ag_tensor(np.zeros(4))

    def fill(i: int, kind: str) -> Any:
        memory[:] = row[:] = X[:, i]
        tensor.data = X[:, i : i + 1]
        return {"array": memory, "list": row, "tensor": tensor}[kind]

    for kind in ("array", "list", "tensor"):
        samples = Made(lambda i, kind=kind: fill(i, kind))
        assert np.array_equal(first(samples, prefetch=prefetch).x.numpy(), X[:, :4])


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_prefetched_samples_are_made_in_another_thread(device: str, prefetch: int) -> None:
    x, y = columns(), Made(lambda i: ag.ag_tensor([i / 2]))
    loader = ag.ag_dataloader(x, y, batch_size=3, prefetch=prefetch)
    for batch in loader:
        assert np.array_equal(batch.x.numpy()[:1], 2 * batch.y.numpy()) and batch.x.device == batch.y.device == device
    assert len(x.threads) == 1 and x.threads == y.threads
    assert (threading.main_thread() in x.threads) == (prefetch == 0)
    assert prefetch == 0 or not x.threads.pop().is_alive()


def test_the_thread_has_the_defaults_of_the_loop(f64: None) -> None:
    seen = []

    def make(i: int) -> Any:
        seen.append((ag.ag_default_device(), ag.ag_default_dtype()))
        return X[:, i]

    with ag.ag_device("cpu:1"):
        assert len(list(ag.ag_dataloader(Made(make), prefetch=2))) == 1
    assert seen == [("cpu:1", "f64")] * 10


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_an_error_surfaces_in_the_loop(prefetch: int) -> None:
    broken = {7}

    def make(i: int) -> Any:
        if i in broken:
            raise LookupError("no row")
        return X[:, i]

    samples = Made(make)
    loader = ag.ag_dataloader(samples, batch_size=3, shuffle=False, prefetch=prefetch)
    seen = []
    with pytest.raises(LookupError, match="no row") as raised:
        for batch in loader:
            seen.append(batch)
    assert len(seen) == 2 and str(raised.value) == "no row"
    assert sys.version_info < (3, 11) or raised.value.__notes__ == ["ag_dataloader was asking for sample 7 of x."]
    assert not any(t.is_alive() for t in samples.threads - {threading.main_thread()})
    resumed = ag.ag_dataloader(samples, batch_size=3, shuffle=False)
    resumed.load_state_dict(loader.state_dict())
    broken.clear()
    assert firsts(resumed) == [6, 7, 8, 9]  # the batch that failed is the next one
    assert firsts(loader) == list(range(10))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_sample_cannot_end_the_loop(prefetch: int) -> None:
    def make(i: int) -> int:
        return next(iter([i] * (i != 3)))

    for take in (list, lambda loader: next(iter(loader.next_batch, None))):
        with expect_error("a sample that raises StopIteration", RuntimeError, "ag_dataloader", "sample 3 of x"):
            take(ag.ag_dataloader(Made(make), batch_size=5, shuffle=False, prefetch=prefetch))


class Held(Made):
    """Samples of which one is not made before it may."""

    def __init__(self, held: int, n: int = 10) -> None:
        super().__init__(self._hold, n)
        self.held, self.began, self.go_on, self.at_once = held, threading.Event(), threading.Event(), 0

    def _hold(self, i: int) -> Any:
        self.at_once += 1
        assert self.at_once == 1, "two threads ask for samples at the same time"
        if i == self.held:
            self.began.set()
            assert self.go_on.wait(60)
        self.at_once -= 1
        return X[:, i]

    def end(self) -> None:
        """Let the sample be made, and wait until the threads are gone."""
        self.go_on.set()
        for thread in self.threads - {threading.main_thread()}:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("batch_size", [1, 5])
def test_leaving_the_loop_does_not_wait_for_a_sample(batch_size: int) -> None:
    samples = Held(held=6)
    loader = ag.ag_dataloader(samples, batch_size=batch_size, shuffle=False, prefetch=9)
    for _ in loader:
        assert samples.began.wait(60)
        break
    assert loader.state_dict()["next"] == 1
    samples.held = -1
    threading.Timer(0.1, samples.go_on.set).start()
    assert firsts(loader) == list(range(10))  # when the sample is made that the thread is at, and no other
    samples.end()
    assert samples.asked == [*range(7), *range(10)]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_error_in_the_loop_does_not_wait_for_a_sample(error: type[BaseException]) -> None:
    samples = Held(held=1)
    loader = ag.ag_dataloader(samples, batch_size=1, shuffle=False, prefetch=9)
    with pytest.raises(error):
        for _ in loader:
            assert samples.began.wait(60)
            raise error
    samples.end()
    assert samples.asked == [0, 1]


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np, ag
signal.signal(signal.SIGINT, signal.default_int_handler)  # processes in the background begin without
class Slow:
    def __len__(self): return 8
    def __getitem__(self, i):
        if i == 4:
            while len(batches) < 2:
                time.sleep(0.01)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(1000)
        return np.zeros(2)
batches = []
try:
    for batch in ag.ag_dataloader(Slow(), batch_size=2, shuffle=False, prefetch=2):
        batches.append(batch)
except KeyboardInterrupt:
    print(len(batches), threading.active_count())
"""


def test_ctrl_c_and_the_end_of_the_process_do_not_wait_for_a_sample() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (0, "2 2\n"), done.stderr


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_goes_on(prefetch: int) -> None:
    samples = Held(held=4)
    loader = ag.ag_dataloader(samples, batch_size=2, shuffle=False, prefetch=prefetch)
    loop = iter(loader)
    seen = [next(loop).x.numpy()[0].tolist()]
    assert prefetch == 0 or samples.began.wait(60)  # the thread is at a sample, whose lock the child finds open
    child = os.fork()
    if child == 0:
        try:
            samples.held, samples.at_once = -1, 0
            seen += [batch.x.numpy()[0].tolist() for batch in loop]
            os._exit(seen != [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]] or firsts(loader) != list(range(10)))
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    samples.go_on.set()
    assert len(list(loop)) == 4


@pytest.mark.parametrize("shuffle", [False, True])
def test_dropout_in_samples_follows_from_the_seed(device: str, shuffle: bool) -> None:
    drop, others = ag.ag_dropout(0.5), ag.ag_dropout(0.5)
    ones = ag.ag_tensor(np.ones((32, 1)))

    def epochs(prefetch: int, used: bool, skip: int = 0) -> tuple[list[bytes], list[bytes]]:
        ag.ag_seed(4)
        loader = ag.ag_dataloader(Made(lambda i: drop(ones).numpy()), batch_size=3, seed=1, shuffle=shuffle,
                                  prefetch=prefetch)
        if skip:
            other = ag.ag_dataloader(Made(lambda i: ones), batch_size=3, seed=1, shuffle=shuffle)
            for _ in range(skip):
                other.next_batch()
            loader.load_state_dict(other.state_dict())
        found, masks = [], []
        for _ in range(2):
            for batch in loader:
                found.append(batch.x.numpy().tobytes())
                masks += [others(ones).numpy().tobytes()] * used
        return found, masks

    expected, masks = epochs(0, True)
    assert len(set(expected)) == 8 and len(set(masks)) == 8
    assert epochs(2, True) == (expected, masks)
    assert epochs(0, False) == (expected, [])
    assert epochs(2, True, skip=2)[0] == expected[2:]
    ag.ag_seed(4)
    assert [others(ones).numpy().tobytes() for _ in range(8)] == masks


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_state_moves_the_loop_that_runs_or_the_next_one(prefetch: int) -> None:
    loader = ag.ag_dataloader(columns(), batch_size=2, shuffle=False, prefetch=prefetch)
    start = loader.state_dict()
    loop = loader.epoch()
    for _ in range(3):
        next(loop)
    loader.load_state_dict(start)
    assert [int(batch.x.numpy()[0, 0]) for batch in loop] == [0, 2, 4, 6, 8]
    loop = loader.epoch()
    for _ in range(3):
        next(loop)
    middle = loader.state_dict()
    loader.load_state_dict(start)
    loader.load_state_dict(middle)
    assert firsts(loader) == [6, 7, 8, 9]
    assert [int(batch.x.numpy()[0, 0]) for batch in loop] == [6, 8]  # another loop went on there


def of_length(i: int) -> Any:
    return np.ones(3 if i == 2 else 2)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize(("x", "y", "error", "fragments"), [
    (Made(of_length), None, ag.ShapeError, ["sample 0 of x has shape (2,)", "sample 2 (3,)", "Pad or resize"]),
    (X, Made(of_length), ag.ShapeError, ["sample 0 of y has shape (2,)", "sample 2 (3,)"]),
    (Made(lambda i: (of_length(i), 1)), None, ag.ShapeError, ["sample 0 of x has shape (2,)", "sample 2 (3,)"]),
    (Made(lambda i: (1, of_length(i))), None, ag.ShapeError, ["sample 0 of y has shape (2,)", "sample 2 (3,)"]),
    (Made(lambda i: (1, 2, 3)), None, ag.ShapeError, ["sample 0 has 3 parts", "a pair (x, y)"]),
    (Made(lambda i: (1, 2) if i < 2 else 1), None, ag.ShapeError, ["sample 2 has 1 part", "a pair (x, y)"]),
    (pairs(), IDS, ag.ShapeError, ["sample 0 of x is a", "not an array"]),
    (Made(lambda i: [[1, 2], [3]]), None, ag.ShapeError, ["sample 0 of x is a", "not an array"]),
    (["a", "b"], None, ag.DtypeError, ["sample 0 of x", "<U1"]),
    (Made(lambda i: {}), None, ag.DtypeError, ["sample 0 of x", "dict"]),
    (Made(lambda i: (i, None)), None, ag.DtypeError, ["sample 0 of y", "NoneType"]),
], ids=["x of two shapes", "y of two shapes", "pairs with x of two shapes", "pairs with y of two shapes", "triples",
        "not all pairs", "pairs and y", "ragged lists", "strings one by one", "empty dicts", "None for y"])
def test_refused_when_the_batch_is_due(x: Any, y: Any, error: type[Exception], fragments: list[str], prefetch: int,
                                       request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.id.rpartition("-")[0]
    with expect_error(f"ag_dataloader: {kind}", error, "ag_dataloader", *fragments):
        first(x, y, prefetch=prefetch)


@pytest.mark.parametrize(("x", "y", "error", "fragments"), [
    (columns(), IDS[:9], ag.ShapeError, ["10 samples", "y 9"]),
    (X, Made(int, 9), ag.ShapeError, ["10 samples", "y 9"]),
    (Made(int, 0), None, ValueError, ["no samples"]),
    ((v for v in X), None, ag.DtypeError, ["x is of type generator", "len()", "Make a list"]),
    (X, object(), ag.DtypeError, ["y is of type object", "len()"]),
    (np.array([[1.5, True], [2.5, False]], object), None, ag.DtypeError, ["such as True in column 1", "numbers are"]),
    (np.array([[1, 2], [3, "a"]], object), None, ag.DtypeError, ["objects of various types, such as 'a' in column 1"]),
    ([[1, 2], [3]], None, ag.ShapeError, ["x is a list and not an array", "rows of one length"]),
], ids=["fewer targets", "fewer made", "no samples made", "a generator", "an object for y",
        "bools beside floats", "a text", "rows of two lengths"])
def test_refused_at_once(x: Any, y: Any, error: type[Exception], fragments: list[str],
                         request: pytest.FixtureRequest) -> None:
    with expect_error(f"ag_dataloader: {request.node.callspec.id}", error, "ag_dataloader", *fragments):
        ag.ag_dataloader(x, y)
