"""The examples in the docstrings of `ag.training` run."""

from __future__ import annotations

import doctest

import pytest

import ag

PUBLIC = [name for name in dir(ag.training) if not name.startswith("Ag")]


@pytest.mark.parametrize("name", PUBLIC)
def test_example(name: str) -> None:
    thing, runner = getattr(ag.training, name), doctest.DocTestRunner()
    found = doctest.DocTestFinder(recurse=False).find(thing, name, module=False, globs={"ag": ag})
    for test in found:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0 and (runner.tries or name in ("History", "LRCurve", "Run"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AgClassifier", "AgRegressor"])
def test_example_of_an_estimator(name: str) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    test_example(name)
