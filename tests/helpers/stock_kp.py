"""Kompute as PyPI has it: the patched binding behind a facade that lets only the release's own names through.

`hide_additions()` puts the facade in the place of `kp`; call it before ag opens a device.  Used by test_stock_kp,
whose child processes import it.  Whatever needs an addition of third_party/kp fails here with AttributeError or
TypeError; recording into a used Sequence, which stock Kompute accepts and Vulkan forbids, fails too.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

PROPERTIES = ("device_name", "max_work_group_count", "max_work_group_invocations", "max_work_group_size",
              "timestamps_supported")
OPERATIONS = ("OpAlgoDispatch", "OpMult", "OpTensorCopy", "OpTensorSyncDevice", "OpTensorSyncLocal")
UNCHANGED = (*OPERATIONS, "Algorithm", "OpBase", "Tensor", "TensorTypes")


class Sequence:
    """kp.Sequence without `dispatch` and `wait`; its `eval_async` waits, as the release's does."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._used = False

    def record(self, operation: Any) -> Sequence:
        if self._used:
            raise AssertionError("stock kp: a used sequence is recorded again (VUID 00050)")
        if type(operation).__name__ not in OPERATIONS:
            raise TypeError(f"stock kp: there is no operation {type(operation).__name__}")
        self._real.record(operation)
        return self

    def eval(self) -> Sequence:
        self._used = True
        self._real.eval()
        return self

    eval_async = eval


class Manager:
    """kp.Manager without arena, features and heaps, and with the five properties that the release knows."""

    def __init__(self, device: int = 0) -> None:
        self._real = sys.modules["_patched_kp"].Manager(device)
        self.tensor, self.tensor_t = self._real.tensor, self._real.tensor_t
        self.algorithm, self.destroy = self._real.algorithm, self._real.destroy

    def sequence(self) -> Sequence:
        return Sequence(self._real.sequence())

    def get_device_properties(self) -> dict[str, Any]:
        return {name: self._real.get_device_properties()[name] for name in PROPERTIES}

    def list_devices(self) -> list[dict[str, Any]]:
        return [{name: device[name] for name in PROPERTIES} for device in self._real.list_devices()]


def hide_additions() -> None:
    """Let `import kp` give the facade from now on."""
    import kp

    stock = ModuleType("kp")
    for name in UNCHANGED:
        setattr(stock, name, getattr(kp, name))
    stock.Manager, stock.Sequence = Manager, Sequence  # type: ignore[attr-defined]
    sys.modules["_patched_kp"], sys.modules["kp"] = kp, stock
