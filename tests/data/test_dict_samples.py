"""Samples that are dicts and tuples: their batches, `fit` and `dp_train` with them, and what is said of wrong ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag import nn, ops
from ag.data import DataLoader

RNG = np.random.default_rng(3)
IMAGES, TOKENS = RNG.standard_normal((24, 3, 2)).astype(np.float32), RNG.integers(0, 5, (24, 4))
AGES, LABELS = RNG.random(24), RNG.integers(0, 2, 24)
SAMPLES: list[dict[str, Any]] = [
    {"image": IMAGES[i], "meta": {"tokens": TOKENS[i], "age": float(AGES[i])}, "label": int(LABELS[i])}
    for i in range(24)]


class Model(nn.Layer):
    """Image, tokens and age in, two logits out."""

    def __init__(self) -> None:
        self.embedding, self.linear = nn.Embedding(5, 2), nn.Linear(6 + 8 + 1, 2)

    def forward(self, x: Any) -> ag.Tensor:
        tokens = self.embedding(x["meta"]["tokens"])
        return self.linear(ops.concat([ops.flatten(x["image"]), ops.flatten(tokens), x["meta"]["age"]]))


def test_batches_have_the_form_of_the_samples(device: str) -> None:
    batch = DataLoader(SAMPLES, target="label", batch_size=5, shuffle=False).next_batch()
    np.testing.assert_array_equal(batch["image"].numpy(), np.moveaxis(IMAGES[:5], 0, -1))
    assert batch["image"].device == device and batch[0] is batch.x and batch[1] is batch.y
    assert type(batch.x["meta"]["tokens"]) is np.ndarray  # ids stay whole numbers, for embeddings
    np.testing.assert_array_equal(batch.x["meta"]["tokens"], TOKENS[:5].T)
    np.testing.assert_allclose(batch.x["meta"]["age"].numpy(), AGES[None, :5], rtol=1e-6)
    np.testing.assert_array_equal(batch.y, LABELS[:5])
    assert [*batch.x] == ["image", "meta"]
    whole = DataLoader(SAMPLES, batch_size=5, shuffle=False, prefetch=2).next_batch()
    assert whole.y is None and [*whole.x] == ["image", "label", "meta"]
    np.testing.assert_array_equal(whole["label"], LABELS[:5])


def test_inputs_choose_keys() -> None:
    one = DataLoader(SAMPLES, target="label", inputs="image", batch_size=2, shuffle=False).next_batch()
    np.testing.assert_array_equal(one.x.numpy(), np.moveaxis(IMAGES[:2], 0, -1))
    some = DataLoader(SAMPLES, inputs=["label", "image"], batch_size=2).next_batch()
    assert [*some.x] == ["image", "label"] and some.y is None
    beside = DataLoader(SAMPLES, LABELS, inputs="image", batch_size=2, shuffle=False).next_batch()
    np.testing.assert_array_equal(beside.y, LABELS[:2])


class Pair(NamedTuple):
    left: Any
    right: Any


def test_tuples_are_several_inputs() -> None:
    samples = [(Pair(IMAGES[i], TOKENS[i]), LABELS[i]) for i in range(6)]
    batch = DataLoader(samples, batch_size=6, shuffle=False).next_batch()
    assert type(batch.x) is Pair and batch.x.left.shape == (3, 2, 6)
    np.testing.assert_array_equal(batch.x.right, TOKENS[:6].T)
    flat = DataLoader([((1.0, 2.0), np.zeros(1)), ((3.0, 4.0), np.ones(1))], batch_size=2, shuffle=False).next_batch()
    np.testing.assert_array_equal(flat.x.numpy(), [[1, 3], [2, 4]])  # numbers are one array, as ever


def test_samples_are_copied_and_keys_may_come_in_any_order() -> None:
    class Same:
        memory = np.zeros(2, np.float32)  # which needs no conversion

        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: int) -> dict[str, Any]:
            self.memory[:] = i
            return {"a": self.memory, "b": i} if i else {"b": i, "a": self.memory}

    batch = DataLoader(Same(), batch_size=3, shuffle=False).next_batch()
    np.testing.assert_array_equal(batch["a"].numpy(), [[0, 1, 2]] * 2)
    assert batch["b"].tolist() == [0, 1, 2]
    history = ag.fit(nn.Sequential(Sum()), DataLoader(Same(), target="b", batch_size=3), epochs=1, verbose=False)
    assert np.isfinite(history["loss"][0])


class Sum(nn.Layer):
    def __init__(self) -> None:
        self.linear = nn.Linear(2, 3)

    def forward(self, x: Any) -> ag.Tensor:
        return self.linear(x["a"])


def trained(loader: Any, devices: list[str], capture: bool) -> tuple[np.ndarray, list[float]]:
    ag.ag_seed(0)
    model = Model()
    history = ag.fit(model, loader, loader[:10], epochs=2, metrics=["accuracy"], seed=4, devices=devices, leaf=4,
                     capture=capture, verbose=False)
    assert ag.training.predict(model, loader).shape == (24, 2)
    return np.concatenate([p.numpy().ravel() for p in model.parameters().values()]), history["val_accuracy"]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_fit_passes_dicts_to_forward(prefetch: int) -> None:
    loader = DataLoader(SAMPLES, target="label", batch_size=8, prefetch=prefetch)
    weights, accuracy = trained(loader, ["cpu"], False)
    for devices, capture in ((["cpu"], True), (["cpu", "cpu:1"], True)):
        again, same = trained(loader, devices, capture)
        np.testing.assert_array_equal(again, weights)
        assert same == accuracy


def test_steps_are_those_of_a_loop() -> None:
    """`fit` makes the steps that a loop of one's own makes with the same batches."""
    loader = DataLoader(SAMPLES, target="label", batch_size=24, shuffle=False)
    ag.ag_seed(0)
    mine, theirs = Model(), Model()
    theirs.load_state_dict(mine.state_dict())
    optimizer = ag.optim.SGD(mine.parameters(), lr=0.1)
    for _ in range(3):
        for batch in loader:
            with ag.with_grad_tape():
                loss = ops.softmax_cross_entropy_loss(mine(batch.x), batch.y)
            optimizer.step(ag.backward(loss))
    ag.fit(theirs, loader, epochs=3, optimizer=lambda p: ag.optim.SGD(p, lr=0.1), verbose=False)
    for name, p in mine.parameters().items():
        np.testing.assert_allclose(theirs.parameters()[name].numpy(), p.numpy(), rtol=1e-5, atol=1e-6)


def test_a_loss_of_ones_own_gets_the_dict() -> None:
    def loss(output: ag.Tensor, batch: Any) -> ag.Tensor:
        return ops.softmax_cross_entropy_loss(output, batch["label"])

    ag.ag_seed(0)
    model = Model()
    first = ag.fit(model, SAMPLES, SAMPLES, epochs=3, loss=loss, verbose=False, lr=0.05)["val_loss"]
    assert first[-1] < first[0]


def test_dp_train_takes_a_loader_of_dicts() -> None:
    losses = [ag.dp_train(Model, DataLoader(SAMPLES, target="label"), ops.softmax_cross_entropy_loss, n_iter=6, batch=8,
                          seed=1, devices=devices, capture=capture, verbose=False).loss_history
              for devices, capture in ((["cpu"], False), (["cpu", "cpu:1"], True))]
    np.testing.assert_array_equal(*losses)


def test_shares_of_a_batch() -> None:
    loader = DataLoader(SAMPLES[:5], target="label", batch_size=4, shuffle=False)
    sizes = [[batch["image"].shape[-1] for batch in loader.share(rank, 3)] for rank in range(3)]
    assert sizes == [[2, 1], [1, 0], [1, 0]]


def at(i: int, **changed: Any) -> list[dict[str, Any]]:
    """Three samples, of which sample `i` differs; None leaves a key out."""
    found: list[dict[str, Any]] = [{"a": np.ones(2), "b": k} for k in range(3)]
    found[i] = {key: x for key, x in {**found[i], **changed}.items() if x is not None}
    return found


@pytest.mark.parametrize(("samples", "options", "error", "fragments"), [
    (at(2, b=None), {}, ag.ShapeError, ["sample 0 of x has shape {'a': (2,), 'b': ()}", "sample 2 {'a': (2,)}"]),
    (at(1, a=np.ones(3)), {}, ag.ShapeError, ["sample 1 {'a': (3,), 'b': ()}", "Pad or resize"]),
    (at(0, a="cat"), {}, ag.DtypeError, ["'a' of sample 0 of x is text", "token ids", "inputs="]),
    (at(0, a={"text": "cat"}), {}, ag.DtypeError, ["'text' of 'a' of sample 0 of x is text"]),
    (at(0, a=[None]), {}, ag.DtypeError, ["'a' of sample 0 of x is of type list"]),
    (at(0, b="cat"), {"target": "b"}, ag.DtypeError, ["sample 0 of y", "np.unique"]),
    (at(0), {"target": "label"}, ValueError, ["keys ['a', 'b']", "not 'label'"]),
    (at(0), {"inputs": ["a", "c"]}, ValueError, ["not 'c'"]),
    (at(0), {"inputs": []}, ag.DtypeError, ["sample 0 of x is of type dict"]),
    ([(np.ones(2), 2)], {"target": "y"}, ValueError, ["sample 0 is a tuple", "not 'y'"]),
    (np.ones((2, 3)), {"target": "y"}, TypeError, ["x is an array", "leave them out"]),
    ({"train": at(0)}, {}, ag.DtypeError, ["x is of type dict", "one entry of a dict"]),
])
def test_refused(samples: Any, options: dict[str, Any], error: type[Exception], fragments: list[str]) -> None:
    with expect_error("samples", error, "ag_dataloader: ", *fragments):
        DataLoader(samples, batch_size=3, shuffle=False, **options).next_batch()


def test_refused_by_fit() -> None:
    with expect_error("no target", TypeError, "fit: train has dicts", 'target="label"'):
        ag.fit(Model(), SAMPLES, verbose=False)
    with expect_error("y twice", TypeError, "y and target='label' are both given"):
        DataLoader(SAMPLES, LABELS, target="label")
    unlike = at(2, a=np.ones(3))
    with expect_error("unlike", ag.ShapeError, "fit: train holds samples of different shapes", "Pad or resize"):
        ag.fit(Sum(), DataLoader(unlike, target="b"), epochs=1, verbose=False)
