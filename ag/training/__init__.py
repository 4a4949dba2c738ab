"""Training in one call: `fit`, measuring, callbacks, and estimators for scikit-learn.

`AgClassifier` and `AgRegressor` need scikit-learn, which is imported when one of them is first asked for.
"""

import typing as _typing
from importlib.util import find_spec as _find_spec

# Whole, before any file of it: of two threads that import a folder and a file in it, each would wait for the other.
import ag.parallel as _parallel
from ag.names import door as _door
from ag.training.callbacks import *
from ag.training.evaluation import *
from ag.training.fit import fit as fit
from ag.training.lr_finder import *
from ag.training.metrics import *
from ag.version import install_line as _install_line

if _typing.TYPE_CHECKING:
    from ag.training.estimators import AgClassifier as AgClassifier
    from ag.training.estimators import AgRegressor as AgRegressor
else:
    __dir__, _wrong = _door(globals(), also=["AgClassifier", "AgRegressor"] if _find_spec("sklearn") else ())

    def __getattr__(name: str) -> object:
        """The estimators, whose package is loaded now, or the answer to a name that is not there."""
        if name not in ("AgClassifier", "AgRegressor"):
            return _wrong(name)
        try:
            from ag.training import estimators
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != "sklearn":
                raise
            raise ImportError(f"{name}: scikit-learn is not installed; run `{_install_line('sklearn')}`.") from error
        return getattr(estimators, name)
