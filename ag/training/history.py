"""The numbers of every epoch of a training, as columns, as rows and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ag.names import Making

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class History(Mapping[str, list[float]]):
    """The numbers of every finished epoch, by name: ``history["loss"]`` is a list with one number per epoch.

    Attributes
    ----------
    rows : list of dict of str to float
        The same, a dict per epoch; ``pandas.DataFrame(history.rows)`` is a table.
    seconds : list of float
        The time of each epoch, with its validation.
    interrupted : bool
        Whether Ctrl-C ended the training.
    stopped : str or None
        The reason of a callback that ended it.
    """

    __signature__ = Making()

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.seconds: list[float] = []
        self.interrupted = False
        self.stopped: str | None = None

    @property
    def epochs(self) -> int:
        """Return the number of finished epochs."""
        return len(self.rows)

    def __getitem__(self, name: str) -> list[float]:
        if self.rows and name not in self.rows[0]:
            raise KeyError(f"History: there is no {name!r}; it has {', '.join(self.rows[0])}.")
        if not self.rows:
            raise KeyError(f"History: there is no {name!r}, as no epoch was finished.")
        return [row[name] for row in self.rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows[0] if self.rows else ())

    def __len__(self) -> int:
        return len(self.rows[0]) if self.rows else 0

    def __repr__(self) -> str:
        last = ", ".join(f"{name}={value:.6g}" for name, value in self.rows[-1].items()) if self.rows else "none"
        ended = ", interrupted" if self.interrupted else f", stopped: {self.stopped}" if self.stopped else ""
        return f"History({self.epochs} epochs{ended}; last: {last})"

    def plot(self, *names: str) -> list[Axes]:
        """Draw columns over epochs: one picture for the loss, one for each metric, training and validation together.

        Parameters
        ----------
        *names : str
            The columns; default: all but the learning rate.

        Returns
        -------
        list of matplotlib.axes.Axes
            One for each picture, of pyplot's current figure: ``pyplot.show()`` shows it, ``pyplot.savefig`` saves it.
        """
        try:
            from matplotlib import pyplot
        except ImportError as error:
            raise ImportError("History.plot: matplotlib is not installed; run `pip install matplotlib`.") from error
        shown = {name: self[name] for name in names or [name for name in self if name != "lr"]}
        about = list(dict.fromkeys(name.removeprefix("val_") for name in shown)) or ["loss"]
        size = (4.8 * len(about), 3.6)
        _, (places,) = pyplot.subplots(1, len(about), squeeze=False, figsize=size, layout="constrained")
        for place, title in zip(places, about, strict=True):
            for name, label in ((title, "training"), (f"val_{title}", "validation")):
                if name in shown:
                    place.plot(range(1, self.epochs + 1), shown[name], marker=".", label=label)
            place.set(title=title.replace("_", " "), xlabel="epoch")
            place.xaxis.get_major_locator().set_params(integer=True)
            place.legend()
        return list(places)
