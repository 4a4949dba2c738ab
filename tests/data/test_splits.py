"""Samples shared out to parts: complete, apart, in proportion, the same for a seed; and what their loaders do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import ag
from ag.data import split

X = np.arange(60).reshape(30, 2)
Y = np.repeat([0, 1, 2], [3, 9, 18])


def together(parts: Iterable[Iterable[int]]) -> list[int]:
    return sorted(chain.from_iterable(parts))


def numbers(part: Any) -> list[int]:
    """The numbers of the samples in a part of `X`."""
    return (np.asarray(part)[:, 0] // 2).tolist()


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.lists(st.integers(1, 9), min_size=2, max_size=5),
       st.integers(0, 99))
def test_parts_are_exact_apart_and_in_proportion(classes: list[int], weights: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(len(classes)), classes)
    count = labels.size
    if count < len(weights):
        return
    sizes = [1] * len(weights)
    for k in range(count - len(weights)):
        sizes[k * 7 % sum(weights) % len(weights)] += 1
    parts = split([*range(count)], sizes, seed=seed, stratify=labels)
    assert [len(part) for part in parts] == sizes
    assert together(parts) == [*range(count)]
    for kind, all_of_it in enumerate(classes):
        for part, size in zip(parts, sizes, strict=True):
            assert abs((labels[part] == kind).sum() - all_of_it * size / count) <= 1


@pytest.mark.slow  # for the import
def test_classes_are_as_scikit_learn_shares_them_out() -> None:
    selection = pytest.importorskip("sklearn.model_selection", reason="scikit-learn is not installed: no reference")
    train, valid = split((X, Y), 0.7, stratify=True)
    _, _, theirs, theirs_valid = selection.train_test_split(X, Y, train_size=0.7, stratify=Y, random_state=0)
    for mine, other in ((train[1], theirs), (valid[1], theirs_valid)):
        assert np.abs(np.bincount(mine, minlength=3) - np.bincount(other, minlength=3)).max() <= 1
    np.testing.assert_array_equal(train[1], Y[numbers(train[0])])  # pairs stay pairs


def test_fractions_of_parts() -> None:
    parts = split(X, (0.7, 0.15, 0.15))
    assert [len(part) for part in parts] == [21, 5, 4]  # 30 times 0.85 is 25.5, and even
    assert together(map(numbers, parts)) == [*range(30)]
    assert [len(part) for part in split(X, 7)] == [7, 23]


def test_the_seed_alone_decides() -> None:
    ag.ag_seed(1)
    first = numbers(split(X, 0.5, seed=3)[0])
    ag.ag_seed(2)
    assert numbers(split(X, 0.5, seed=3)[0]) == first
    assert numbers(split(X, 0.5, seed=4)[0]) != first
    assert first != sorted(first)  # a part is shuffled, so that its beginning has all classes
    assert numbers(split(X, 0.5)[0]) == numbers(split(X, 0.5, seed=0)[0]) == [
        22, 16, 6, 11, 9, 29, 27, 2, 12, 19, 7, 24, 18, 8, 23]  # a training that goes on finds the same parts


def test_groups_stay_whole() -> None:
    groups = np.array(list("aabbbcddddee"))
    parts = split([*range(12)], (3, 2), groups=groups)
    found = [set(groups[part]) for part in parts]
    assert [len(kinds) for kinds in found] == [3, 2] and not found[0] & found[1]
    assert together(parts) == [*range(12)]


class Squares:
    """A dataset that makes its samples."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return np.full(2, i), i * i


KINDS: dict[str, tuple[Any, Callable[[Any], list[int]]]] = {
    "a list": ([*range(10)], list), "an array": (np.arange(10), lambda x: x.tolist()),
    "a tensor": (ag.ag_tensor(np.arange(10)), lambda x: x.ravel().astype(int).tolist()),
    "a dataset": (Squares(), lambda x: [int(x[k][0][0]) for k in range(len(x))]),
    "a loader": (ag.data.DataLoader(Squares(), batch_size=3), lambda x: [int(v) for b in x for v in b.x.numpy()[0]]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_of_the_kind_of_the_data(kind: str) -> None:
    data, read = KINDS[kind]
    train, valid = split(data, 0.8)
    assert sorted(read(train) + read(valid)) == [*range(10)] and len(read(valid)) == 2
    assert kind in ("a tensor", "a dataset") or type(train) is type(data)


def test_data_frames_keep_their_columns() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    train, valid = split((pandas.DataFrame({"a": X[:, 0]}), pandas.Series(Y)), 0.8, stratify=True)
    assert [*train[0].columns] == ["a"] and len(valid[1]) == 6
    np.testing.assert_array_equal(Y[train[0]["a"] // 2], train[1])


@pytest.mark.parametrize(("data", "options", "error", "fragments"), [
    ([1, 2], {"sizes": 2}, ValueError, ["sizes is 2 of 2 samples", "None may be empty"]),
    ([1, 2], {"sizes": 1.0}, ValueError, ["sizes is 1.0", "between 0 and 1"]),
    ([1, 2, 3], {"sizes": (0.5, 0.3)}, ValueError, ["sizes is (0.5, 0.3) of 3", "make up all"]),
    ([1, 2, 3], {"sizes": (1, 1)}, ValueError, ["sizes is (1, 1) of 3", "make up all"]),
    ([1, 2, 3], {"sizes": (1, 0.5)}, ValueError, ["sizes is (1, 0.5)"]),
    ([1, 2, 3], {"sizes": True}, ValueError, ["sizes is True of 3"]),
    ([1, 2, 3], {"sizes": []}, ValueError, ["sizes is [] of 3"]),
    ([1, 2, 3], {"seed": True}, ValueError, ["seed is True"]),
    ([1, 2, 3], {"groups": ["a", None, "a"]}, ag.ShapeError, ["groups is object", "of one type"]),
    (((X[0], 0), (X[1], 1), (X[2], 2)), {"sizes": 2}, TypeError, ["has a tuple", "list(data)"]),
    ([1, 2, 3], {"sizes": "half"}, ValueError, ["sizes is 'half'"]),
    ([], {}, ValueError, ["of 0 samples"]),
    ([1, 2], {"seed": None}, ValueError, ["seed is None", "whole number"]),
    ([1, 2], {"stratify": True}, ValueError, ["stratify True", "array of labels"]),
    ([1, 2], {"sizes": 1, "stratify": [0]}, ag.ShapeError, ["stratify is int64 of shape (1,)", "each of 2 samples"]),
    ([1, 2], {"stratify": [0, 1], "groups": [0, 1]}, ValueError, ["at most one of the others"]),
    ([1, 2], {"sizes": 1, "stratify": [0.5, 1]}, ag.ShapeError, ["no fractions", "np.digitize"]),
    ((X, Y[:5]), {}, ag.ShapeError, ["[30, 5] samples"]),
    ({"a": X}, {}, TypeError, ["has a dict"]),
    (np.array(3), {}, TypeError, ["has a ndarray"]),
    (iter(X), {}, TypeError, ["arrays (X, y) are required"]),
    (ag.data.DataLoader(Squares()), {"stratify": True}, ValueError, ["ag_dataloader.split", "array of labels"]),
])
def test_refused(data: Any, options: dict[str, Any], error: type[Exception], fragments: list[str]) -> None:
    with expect_error("split", error, "split: ", *fragments):
        split(data, **options)


# ------------------------------------------------------------------------------------------------------ loaders


def columns(loader: Any) -> list[int]:
    return [int(v) for batch in loader for v in batch.x.numpy()[0]]


def test_the_first_part_is_for_training_and_others_for_measuring() -> None:
    loader = ag.ag_dataloader(X.T, Y, batch_size=4, drop_last=True, seed=5, prefetch=1)
    train, valid = loader.split(0.6, stratify=True)
    assert [(p.n_samples, p.shuffle, p.drop_last, p.batch_size, p.prefetch) for p in (train, valid)] == [
        (18, True, True, 4, 1), (12, False, False, 4, 1)]
    assert columns(valid) == columns(valid) and len(columns(valid)) == 12
    assert columns(train) != columns(train) and len(columns(train)) == 16
    assert not {*columns(train)} & {*columns(valid)}
    for batch in valid:
        np.testing.assert_array_equal(batch.y, Y[batch.x.numpy()[0].astype(int) // 2])
    assert loader.n_samples == 30 and sorted(columns(loader[:]))[0] >= 0
    again = train.split((9, 9))
    assert {*columns(again[0]), *columns(again[1])} <= {*range(0, 60, 2)} - {*columns(valid)}
    fresh = loader.split(0.6, stratify=True)[0]
    train.next_batch()
    state = train.state_dict()
    fresh.load_state_dict(state)
    np.testing.assert_array_equal(train.next_batch().x.numpy(), fresh.next_batch().x.numpy())


def test_some_samples_of_a_loader() -> None:
    loader = ag.ag_dataloader(X.T, Y, batch_size=4, shuffle=False)
    assert columns(loader[:3]) == [0, 2, 4] and columns(loader[::-10]) == [58, 38, 18]
    assert columns(loader[[5, 5, -1]]) == [10, 10, 58] and columns(loader[Y == 0]) == [0, 2, 4]
    assert [b.y.tolist() for b in loader[np.array([3, 2])]] == [[1, 0]]
    share = ag.ag_dataloader(X.T, batch_size=4, shuffle=False).share(1, 2)[:4]
    assert columns(share) == [4, 6]
    for wrong, error in ((0, ValueError), (slice(0), ValueError), ([30], IndexError), ("a", IndexError),
                         (0.5, IndexError), ([[1]], ValueError)):
        with expect_error(f"loader[{wrong}]", error, "ag_dataloader", "slice or an array of numbers is required"):
            loader[wrong]
    with expect_error("a loader of a loader", TypeError, "x is a loader already"):
        ag.ag_dataloader(loader)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of 4, 8 and 12 images, each of one grey."""
    for k, name in enumerate(("ant", "bee", "cat")):
        (tmp_path / name).mkdir()
        for i in range(4 * k + 4):
            Image.fromarray(np.full((6, 6 + k, 3), 60 * k + i, np.uint8)).save(tmp_path / name / f"{i:02}.png")
    return tmp_path


def test_a_folder_is_split_and_fit_takes_the_parts(folder: Path) -> None:
    whole = ag.ag_image_folder(folder, 4, 5, seed=1, shorter_side=5, random_crop=True, random_flip=True)
    train, valid = whole.split(0.75, stratify=True)
    assert np.bincount(train.ids).tolist() == [3, 6, 9] and np.bincount(valid.ids).tolist() == [1, 2, 3]
    assert {*train.files} | {*valid.files} == {*whole.files} and not {*train.files} & {*valid.files}
    assert train.classes == valid.classes == ["ant", "bee", "cat"]
    assert (train.random_crop, train.random_flip, train.shuffle) == (True, True, True)
    assert (valid.random_crop, valid.random_flip, valid.shuffle) == (False, False, False)
    for batch in valid:
        assert (np.rint(batch.x.numpy()[0, 0, 0] * 255) // 60 == batch.y).all()
    assert [f.parent.name for f in valid.files] == [valid.classes[k] for k in valid.ids]
    model = ag.nn.Sequential(ag.nn.Flatten(), ag.nn.Linear(48, 3))
    history = ag.fit(model, train, valid, epochs=2, metrics=["accuracy"], verbose=False)
    assert len(history["val_accuracy"]) == 2
    assert whole[:4].ids.tolist() == [0] * 4 and whole[:4].random_flip


def test_held_out_images_are_cut_from_the_middle(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    image = np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8)
    for i in range(4):
        Image.fromarray(image).save(tmp_path / "a" / f"{i}.png")
    options: dict[str, Any] = {"size": 5, "shorter_side": 9, "shuffle": False}
    whole = ag.ag_image_folder(tmp_path, random_crop=True, random_flip=True, seed=3, **options)
    train, valid = whole.split(2)
    middle = next(iter(ag.ag_image_folder(tmp_path, **options))).x.numpy()[..., :1]
    assert (next(iter(valid)).x.numpy() == middle).all()
    assert not (next(iter(train)).x.numpy() == middle).all()


def test_a_transform_is_given_for_each_part(folder: Path) -> None:
    def dark(image: np.ndarray) -> np.ndarray:
        return image * 0

    whole = ag.ag_image_folder(folder, 4, transform=dark)
    with expect_error("split", ValueError, "ag_image_folder.split", "transforms is None",
                      "(folder.transform, None)"):
        whole.split(0.5)
    with expect_error("split", ValueError, "each of 2 parts"):
        whole.split(0.5, transforms=(dark,))
    train, valid = whole.split(0.5, transforms=(dark, None))
    assert train.transform is dark and valid.transform is None
    assert next(iter(train)).x.numpy().max() == 0 < next(iter(valid)).x.numpy().max()


def test_images_of_a_list(folder: Path) -> None:
    whole = ag.ag_image_folder(folder, 4, shuffle=False)
    expected = np.concatenate([b.x.numpy() for b in whole], -1)
    ids, names = whole.ids, [whole.classes[k] for k in whole.ids]
    for given_, classes in (((whole.files, ids), list("012")), ([*zip(whole.files, names, strict=True)], whole.classes),
                            (([str(f) for f in whole.files], np.array(names)), whole.classes)):
        loader = ag.ag_image_folder(given_, 4, shuffle=False)
        assert loader.classes == classes and loader.ids.tolist() == ids.tolist()
        np.testing.assert_array_equal(np.concatenate([b.x.numpy() for b in loader], -1), expected)
    (files, labels), _ = split((list(whole.files), names), 0.5, stratify=True)
    assert [f.parent.name for f in files] == labels
    only = ag.ag_image_folder((whole.files[-2:], ["cat", "cat"]), 4, classes=whole.classes)
    assert only.ids.tolist() == [2, 2] and only.classes == whole.classes
    assert ag.ag_image_folder((whole.files[:1], [1]), 4, classes=["x", "y"]).classes == ["x", "y"]


@pytest.mark.parametrize("given_", [[], ["a.png"], (["a.png"],), (["a.png"], [0, 1]), (["a.png"], [-1]), (["a"], [0.5]),
                                    (["a", "b"], [0, "x"]), ([1], [0]), [("a", 0, 0)]], ids=str)
def test_lists_of_images_that_are_refused(given_: Any) -> None:
    with expect_error("ag_image_folder", ValueError, "ag_image_folder: path is", "labels are ids"):
        ag.ag_image_folder(given_, 4)


def test_classes_that_are_refused(folder: Path) -> None:
    for label, classes in (("dog", ["cat"]), (2, ["cat", "dog"])):
        with expect_error("classes", ValueError, "names that are in classes"):
            ag.ag_image_folder((["a.png"], [label]), 4, classes=classes)
    with expect_error("classes of a folder", TypeError, "files and labels, which alone can have classes"):
        ag.ag_image_folder(folder, 4, classes=["ant"])
