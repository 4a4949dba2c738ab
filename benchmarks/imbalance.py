"""Balanced accuracy of a rare class: AgClassifier(class_weight="balanced") and an MLPClassifier on resampled data.

`python benchmarks/imbalance.py` prints a line per seed, and fails if one is more than 0.02 below.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ag


def scores(seed: int) -> tuple[float, float, float]:
    """Return balanced accuracies on held-out data: weighted, unweighted, and of the other on as many of each class."""
    X, y = make_classification(20000, 20, weights=[0.98], random_state=seed)
    X, held, y, wanted = train_test_split(X, y, test_size=0.5, stratify=y, random_state=seed)

    def score(model: object, X: np.ndarray, y: np.ndarray) -> float:
        fitted = make_pipeline(StandardScaler(), model).fit(X, y)
        return float(balanced_accuracy_score(wanted, fitted.predict(held)))

    options = {"epochs": 20, "random_state": seed}
    weighted = score(ag.AgClassifier(class_weight="balanced", **options), X, y)
    plain = score(ag.AgClassifier(**options), X, y)
    rng = np.random.default_rng(seed)
    rare, usual = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
    chosen = np.concatenate([usual, rng.choice(rare, len(usual))])
    warnings.simplefilter("ignore", ConvergenceWarning)
    resampled = score(MLPClassifier((64,), max_iter=20, learning_rate_init=1e-2, random_state=seed), X[chosen],
                      y[chosen])
    return weighted, plain, resampled


def main() -> None:
    """Print the scores of five seeds."""
    worst = 1.0
    for seed in range(5):
        weighted, plain, resampled = scores(seed)
        worst = min(worst, weighted - resampled)
        print(f"seed {seed}: balanced {weighted:.3f}, unweighted {plain:.3f}, MLPClassifier resampled {resampled:.3f}",
              flush=True)
    if worst < -0.02:
        sys.exit(f"imbalance: {worst:.3f} below the resampled classifier; it may be -0.02.")


if __name__ == "__main__":
    main()
