"""What ag raises where Kompute does: errors that name the device, what was refused, and what to do.

`kp` raises errors of three classes of its own: there is no memory (`kp.OutOfMemoryError`), the device was lost
(`kp.DeviceLostError`), or a driver refuses something else (`kp.Error`).  So they are told from what a signal's handler
raises in the middle of a call, which goes on as it is.  No call of a manager ends in one of them, as the loader hands
out what `guarded` returns; sequences are called too often for that, so the recorder, which alone has any, asks
`Faults.told` for the error to raise.  Knows no command, no buffer and no kernel.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, cast

from ag.engine.backends.vulkan.kp_types import Manager
from ag.errors import AgError, ArenaError, DeviceError

__all__ = ["Faults", "guarded", "no_room"]


class Faults:
    """The errors of `kp` on one device, and what ag raises instead.

    Parameters
    ----------
    kp : module
    device : str
        Its name, for messages.

    Attributes
    ----------
    errors : tuple of type
        What `kp` raises, to be caught.
    """

    def __init__(self, kp: ModuleType, device: str) -> None:
        self._lost: type[Exception] = kp.DeviceLostError
        self.errors: tuple[type[Exception], ...] = (kp.OutOfMemoryError, kp.Error)
        self._device = device

    def of_a_lost_device(self, error: BaseException | None) -> bool:
        """Whether an error of `kp` says that the device was lost."""
        return isinstance(error, self._lost)

    def told(self, error: Exception, launch: str = "", seconds: float = 0.0) -> AgError:
        """The error to raise for one of `kp`.

        Parameters
        ----------
        error : Exception
        launch : str, optional
            The costliest in the submission in which a device was lost, if it was lost in one.
        seconds : float, optional
            What a submission may cost.
        """
        if self.of_a_lost_device(error):
            where = (f" in a submission whose costliest launch is {launch}; if the driver's watchdog ended it, as it "
                     f"does after some seconds, smaller batches or AG_SUBMIT_MS={max(1, round(250 * seconds))} help")
            return DeviceError(f"{self._device}: the device was lost ({error}){where if launch else ''}. Its tensors "
                               f"are gone: go on from the last checkpoint, after ag_shutdown() or in a new process.")
        if isinstance(error, MemoryError):
            return ArenaError(f"{self._device}: the driver has no memory for a call ({error}); free tensors, take "
                              f"smaller batches, or close what else uses the device.")
        return DeviceError(f"{self._device}: the driver refuses a call ({error}); update it, or use another device, "
                           f"such as 'cpu'.")


class _Guarded:
    """A `kp.Manager` whose calls end in errors of ag."""

    def __init__(self, manager: Manager, faults: Faults) -> None:
        self._manager, self._faults = manager, faults

    def __getattr__(self, name: str) -> Any:
        call, faults = getattr(self._manager, name), self._faults

        def guarded(*args: object, **options: object) -> object:
            try:
                return call(*args, **options)
            except faults.errors as error:
                raise faults.told(error) from error

        setattr(self, name, guarded)  # for the next time
        return guarded


def guarded(manager: Manager, faults: Faults) -> Manager:
    """A manager whose calls end in errors of ag."""
    return cast(Manager, _Guarded(manager, faults))


def no_room(device: str, error: BaseException) -> ArenaError:
    """The error to raise where a device is opened that has no memory for what it needs from the beginning."""
    while error.__cause__ is not None:
        error = error.__cause__  # the driver's own words
    return ArenaError(f"{device}: the device has no memory left to be opened ({error}); close what else uses it, or "
                      f"use another device, such as 'cpu'.")
