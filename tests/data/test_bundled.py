"""The data sets of the package: the numbers that their sources have, in the order that `fit` takes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import ag


@pytest.mark.parametrize("name", ["iris", "digits"])
def test_as_in_scikit_learn(name: str) -> None:
    sets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed: no reference")
    found, expected = getattr(ag.data, f"load_{name}")(), getattr(sets, f"load_{name}")()
    X, y = found
    np.testing.assert_array_equal(X, expected.data.astype(np.float32))
    np.testing.assert_array_equal(y, expected.target)
    assert X.dtype == np.float32 and y.dtype == np.int64
    assert [*found.target_names] == [str(k) for k in expected.target_names]
    assert len(found.feature_names) == X.shape[1]
    again = pickle.loads(pickle.dumps(found))
    assert again.target_names == found.target_names and (again.X == found.X).all()


def test_texts() -> None:
    sonnets, play = ag.data.load_sonnets(), ag.data.load_shakespeare()
    assert sonnets.startswith("Shall I compare thee") and sonnets.count("\n\n") == 4
    assert play.strip().startswith("AS YOU LIKE IT") and "All the world's a stage" in play and len(play) == 125179


def test_fit_takes_a_data_set_as_it_is() -> None:
    train, valid = ag.data.split(ag.data.load_iris(), 0.8, stratify=True)
    history = ag.fit(ag.nn.Linear(4, 3), train, valid, epochs=20, lr=0.05, metrics=["accuracy"], verbose=False)
    assert history["val_accuracy"][-1] > 0.8
    assert ag.training.evaluate(ag.nn.Linear(64, 10), ag.data.load_digits())["loss"] > 0
