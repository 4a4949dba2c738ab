"""Two per cent of the rows are the class that matters: pipelines, weights of classes, and a grid search."""

import sys

from sklearn.compose import make_column_transformer
from sklearn.datasets import make_classification
from sklearn.metrics import balanced_accuracy_score, confusion_matrix
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from ag.training import AgClassifier

NUMBERS = 12  # of the columns; the last one is a category
X, y = make_classification(6000, NUMBERS + 1, n_informative=8, n_clusters_per_class=1, weights=[0.98], class_sep=0.6,
                           flip_y=0, random_state=0)
X[:, -1] = (X[:, -1] > 0) + (X[:, -1] > 1)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
print(f"{y_train.sum()} of {len(y_train)} rows are of the rare class")


def pipeline(**options):
    categories = OneHotEncoder(sparse_output=False)
    columns = make_column_transformer((StandardScaler(), slice(NUMBERS)), (categories, [NUMBERS]))
    return make_pipeline(columns, AgClassifier(hidden=(32,), epochs=15, batch_size=128, random_state=0, **options))


print("\n1. Without weights of classes, and with them")
scores = {}
for class_weight in (None, "balanced"):
    model = pipeline(class_weight=class_weight).fit(X_train, y_train)
    guesses = model.predict(X_test)
    scores[class_weight] = balanced_accuracy_score(y_test, guesses)
    print(f"class_weight={class_weight!r}: balanced accuracy {scores[class_weight]:.3f}")
    print(confusion_matrix(y_test, guesses))

print("\n2. A grid search over the step size and the weights")
grid = {"agclassifier__lr": [1e-3, 1e-2], "agclassifier__class_weight": ["balanced", {0: 1.0, 1: 10.0}]}
search = GridSearchCV(pipeline(), grid, scoring="balanced_accuracy", cv=3).fit(X_train, y_train)
found = search.score(X_test, y_test)
print(search.best_params_, f"balanced accuracy {found:.3f}")

if min(scores["balanced"], found) < max(0.8, scores[None]):
    sys.exit("FAILED: weights of classes must help")
