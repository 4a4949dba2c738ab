"""Draw with matplotlib, if it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ag.engine.primitive import Array


def pyplot_for(function: str) -> Any:
    """Return matplotlib's pyplot, or say how to get it."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(f"{function}: matplotlib is not installed; run `pip install matplotlib`.") from error
    return pyplot


def draw_matrix(function: str, matrix: Array, names: Sequence[object]) -> None:
    """Draw a confusion matrix, with its numbers, into a new figure."""
    size = 1 + 0.5 * len(matrix)
    _, place = pyplot_for(function).subplots(figsize=(size + 0.5, size), layout="constrained")
    place.imshow(matrix, cmap="Blues")
    for (row, column), value in ((at, matrix[at]) for at in zip(*matrix.nonzero(), strict=True)):
        colour = "white" if value > matrix.max() / 2 else "black"
        place.text(column, row, f"{value:.3g}", ha="center", va="center", color=colour)
    places = range(len(matrix))
    place.set(xlabel="predicted", ylabel="true", xticks=places, yticks=places)
    place.set_xticklabels(names, rotation="vertical" if max(len(str(name)) for name in names) > 3 else "horizontal")
    place.set_yticklabels(names)
