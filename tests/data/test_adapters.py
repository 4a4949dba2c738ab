"""Data of other libraries: DataLoaders of PyTorch, datasets of Hugging Face, and pandas.

Where PyTorch is not installed, classes with its names and attributes stand in (torch/utils/data/dataloader.py, 2.9).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error

import ag
from ag.data import DataLoader

X = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


class Pairs:
    """A map-style dataset."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return X[i], int(Y[i])


def stand_in(name: str, **attributes: Any) -> Any:
    return type(name, (), {"__module__": "torch.utils.data.dataloader", **attributes})()


def default_collate(samples: Any) -> Any:
    raise AssertionError("batches are made by ag")


def torch_loader(dataset: Any, batch_size: int | None = 1, shuffle: bool = False, sampler: Any = None,
                 drop_last: bool = False, collate_fn: Callable[[Any], Any] | None = None) -> Any:
    if find_spec("torch") is not None:
        from torch.utils import data

        return data.DataLoader(dataset, batch_size, shuffle, sampler, drop_last=drop_last, collate_fn=collate_fn)
    count = len(dataset)
    own = stand_in("RandomSampler", replacement=False, __len__=lambda s: count) if shuffle else stand_in(
        "SequentialSampler", __len__=lambda s: count)
    return stand_in("DataLoader", dataset=dataset, batch_size=batch_size, drop_last=drop_last,
                    sampler=sampler or own, collate_fn=staticmethod(collate_fn or default_collate),
                    __len__=lambda s: -(-count // (batch_size or 1)))


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_torch_loader_brings_its_settings(shuffle: bool) -> None:
    loader = ag.ag_dataloader(torch_loader(Pairs(), 6, shuffle, drop_last=True), seed=1)
    assert (loader.batch_size, loader.shuffle, loader.drop_last, loader.n_samples) == (6, shuffle, True, 20)
    batches = list(loader)
    assert [b.x.shape for b in batches] == [(3, 6)] * 3
    same = list(ag.ag_dataloader(X.T, Y, 6, shuffle, drop_last=True, seed=1))
    for mine, other in zip(batches, same, strict=True):
        np.testing.assert_array_equal(mine.x.numpy(), other.x.numpy())
        np.testing.assert_array_equal(mine.y, other.y)


def test_fit_takes_torch_loaders() -> None:
    def weights(train: Any, valid: Any, **options: Any) -> np.ndarray:
        ag.ag_seed(0)
        model = ag.nn.Linear(3, 2)
        history = ag.fit(model, train, valid, epochs=2, verbose=False, metrics=["accuracy"], seed=3, **options)
        assert len(history["val_accuracy"]) == 2
        return model.W.numpy()

    mine = weights(torch_loader(Pairs(), 5, True), torch_loader(Pairs(), 7))
    np.testing.assert_array_equal(mine, weights((X, Y), (X, Y), batch_size=5))
    np.testing.assert_array_equal(weights(torch_loader(Pairs(), 5), torch_loader(Pairs(), 7)),
                                  weights((X, Y), (X, Y), batch_size=5, shuffle=False))
    np.testing.assert_array_equal(weights(torch_loader(Pairs(), 5, True), (X, Y), batch_size=10),
                                  weights((X, Y), (X, Y), batch_size=10))


def weighted(count: int) -> Any:
    if find_spec("torch") is not None:
        from torch.utils import data

        return data.WeightedRandomSampler([1.0] * count, count)
    return stand_in("WeightedRandomSampler", replacement=True, __len__=lambda s: count)


@pytest.mark.parametrize(("options", "fragments"), [
    ({"collate_fn": lambda samples: samples}, ["<lambda>", "no collate_fn"]),
    ({"sampler": weighted(20)}, ["WeightedRandomSampler", "shuffle=True or False"]),
    ({"batch_size": None, "collate_fn": default_collate}, ["batch_size None"]),
], ids=["collate_fn", "sampler", "no batches"])
def test_torch_loaders_that_are_refused(options: dict[str, Any], fragments: list[str]) -> None:
    fit = partial(ag.fit, ag.nn.Linear(3, 2), verbose=False)
    for name, use in (("ag_dataloader", ag.ag_dataloader), ("fit", fit)):
        with expect_error("a torch loader", ValueError, f"{name}: the DataLoader of PyTorch has", *fragments):
            use(torch_loader(Pairs(), **options))


def test_settings_beside_a_torch_loader_are_refused() -> None:
    for options in ({"batch_size": 4}, {"shuffle": False}, {"drop_last": True}, {"y": Y}):
        with expect_error("settings", ValueError, "x is a DataLoader of PyTorch", "leave them out"):
            ag.ag_dataloader(torch_loader(Pairs()), **options)


def test_a_torch_model_is_named() -> None:
    class Module:
        def forward(self, x: Any) -> Any:
            return x

        def parameters(self) -> Any:
            return iter(())

    with expect_error("a torch model", TypeError, "fit: model is a Module whose parameters() is no dict",
                      "ag.io.load_weights"):
        ag.fit(Module(), (X, Y))  # type: ignore[arg-type]


class Table:
    """A dataset as of Hugging Face: rows by number, columns by name."""

    column_names, shape = ("features", "text", "label"), (20, 3)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, key: Any) -> Any:
        rows = [{"features": X[i].tolist(), "text": "words", "label": int(Y[i])} for i in range(20)]
        return [row[key] for row in rows] if isinstance(key, str) else rows[key]


def check_hugging_face(data: Any) -> None:
    loader = DataLoader(data, inputs="features", target="label", batch_size=5, seed=2)
    for mine, other in zip(loader, ag.ag_dataloader(X.T, Y, 5, seed=2), strict=True):
        np.testing.assert_array_equal(mine.x.numpy(), other.x.numpy())
        np.testing.assert_array_equal(mine.y, other.y)
    with expect_error("text", ag.DtypeError, "'text' of sample", "inputs="):
        DataLoader(data, target="label").next_batch()
    train, valid = loader.split(0.8, stratify=data["label"])
    history = ag.fit(ag.nn.Linear(3, 2), train, valid, epochs=2, verbose=False)
    assert len(history["val_loss"]) == 2
    parts = ag.data.split(data, 0.8, stratify=data["label"])
    assert [len(part) for part in parts] == [16, 4] and parts[1][0]["text"] == "words"


def test_datasets_of_hugging_face() -> None:
    check_hugging_face(Table())


@pytest.mark.slow
def test_real_datasets_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    data = datasets.Dataset.from_dict({name: Table()[name] for name in Table.column_names})
    check_hugging_face(data)
    check_hugging_face(data.with_format("numpy"))
    with expect_error("a DatasetDict", ag.DtypeError, "one entry of a dict"):
        DataLoader(datasets.DatasetDict(train=data))


class Frame(np.ndarray):
    """An array with ``iloc``, as of pandas."""

    @property
    def iloc(self) -> np.ndarray:
        return self.view(np.ndarray)


def test_data_frames_have_samples_in_rows() -> None:
    frames = [(X.view(Frame), Y.view(Frame))]
    if find_spec("pandas") is not None:
        import pandas

        frames.append((pandas.DataFrame(X, columns=list("abc")), pandas.Series(Y)))
    for x, y in frames:
        batch = DataLoader(x, y, batch_size=20, shuffle=False).next_batch()
        np.testing.assert_array_equal(batch.x.numpy(), X.T)
        np.testing.assert_array_equal(batch.y, Y)
        square = DataLoader(x[:3], batch_size=1, shuffle=False).next_batch()
        np.testing.assert_array_equal(square.x.numpy(), X[:1].T)


def test_names_of_classes_are_answered() -> None:
    with expect_error("names", ag.DtypeError, "y is of type <U3", "np.unique(y, return_inverse=True)"):
        ag.fit(ag.nn.Linear(3, 2), (X, np.array(["cat", "dog"] * 10)), verbose=False)
