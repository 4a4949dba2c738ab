"""ag: automatic differentiation and data-parallel training on any Vulkan device, and on the CPU.

Every public name is here, and by subject in `nn`, `ops`, `optim`, `data`, `io`, `parallel` and `training`.  What every
training needs is imported, and neither Kompute nor a driver; the rest when one of its names is first used (PEP 562).
"""

import os as _os
import typing as _typing
from functools import cache as _cache
from importlib import import_module as _import_module
from threading import RLock as _RLock
from types import ModuleType as _ModuleType, SimpleNamespace as _SimpleNamespace

# After a product of matrices numpy's idle threads spin for 20 ms, on cores that the rest of a step could use; 2^16
# cycles are enough.  Takes effect if numpy is not loaded yet.
_os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")

from ag.names import MissingNameError as _MissingNameError, answer_arguments as _answer_arguments

# errors
from ag.errors import *

# devices
from ag.engine.backend import DeviceInfo as DeviceInfo
from ag.engine.device import (
    ag_default_device as ag_default_device, ag_default_dtype as ag_default_dtype, ag_device as ag_device,
    ag_dtype as ag_dtype, ag_shutdown as ag_shutdown, ag_synchronize as ag_synchronize,
)
from ag.engine.random import ag_seed as ag_seed

# tensors and the tape
from ag.autograd.create import (
    ag_frozen as ag_frozen, ag_param as ag_param, ag_tensor as ag_tensor, is_ag_tensor as is_ag_tensor,
)
from ag.autograd.frozen import FrozenTensor as FrozenTensor
from ag.autograd.tape import (
    Gradients as Gradients, backward as backward, no_grad as no_grad, with_grad_tape as with_grad_tape,
)
from ag.autograd.tensor import Tensor as Tensor

# ops: those that the files in ag/ops list
from ag import ops as ops
if _typing.TYPE_CHECKING:  # which are no ops here
    from ag.parallel.comm.tensor_collectives import gather as gather, scatter as scatter
from ag.ops import *  # type: ignore[assignment]

from ag.version import __version__ as __version__

# The rest is loaded when it is first used.  ag/_later.py has its names, for type checkers and for `_homes`.
if _typing.TYPE_CHECKING:
    from ag._later import *
else:
    @_cache
    def _homes() -> dict[str, str]:
        """Return the module of each name in ag/_later.py: run that file with an import that only takes notes."""
        from importlib.util import find_spec

        homes = {}

        def note(module, _globals, _locals, names, _level):
            homes.update(dict.fromkeys(names, module))
            return _SimpleNamespace(**dict.fromkeys(names))

        exec(find_spec("ag._later").loader.get_code("ag._later"), {"__builtins__": {"__import__": note}})
        return homes

    def _public() -> set[str]:
        names = {name for name, x in globals().items() if name[0] != "_" and not isinstance(x, _ModuleType)}
        return (names | {name for name, home in _homes().items() if home != "ag"}) - {"AgClassifier", "AgRegressor"}

    def __dir__() -> list[str]:
        """List the public names and the namespaces, without the modules that they are made of."""
        from importlib.util import find_spec

        others = ("AgClassifier", "AgRegressor") if find_spec("sklearn") else ()
        namespaces = [name for name, home in _homes().items() if home == "ag"]
        return sorted([*_public(), "ops", *namespaces, "__version__", *others])

    def __getattr__(name: str) -> object:
        """Load a name that is first used, or answer one that is not there with the nearest."""
        if name == "__all__":
            return sorted(_public())
        home = "ag" if name == "tools" else _homes().get(name)
        if home is None:
            raise _MissingNameError("ag", name)
        if home == "ag":
            return _import_module(f"ag.{name}")
        with _loading:  # one thread wraps it
            if name not in globals():
                found = getattr(_import_module(home), name)
                globals()[name] = _answer_arguments({name: found}, "ag")[name]
            return globals()[name]

    _loading = _RLock()
    if hasattr(_os, "register_at_fork"):  # or a child would wait for a module that a thread of its parent loads
        _os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release,
                             after_in_child=_loading.release)

    _answer_arguments(globals(), "ag")
