"""Devices that fail, for the tests of what goes on without them; which tests are quick on lavapipe, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ag
from ag.engine.device import backend_of

DRIVERS = ("test_device_time.py", "test_dp_train.py", "test_placements.py")  # what drivers could change


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave lavapipe to the slow leg; parallel training knows no drivers, but for what DRIVERS try."""
    if item.path.name not in DRIVERS:
        item.add_marker(pytest.mark.slow_on("lavapipe"))


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Let a device do so much from now on, and then nothing any more."""
    def fail(device: str, after: int) -> None:
        backend, left = backend_of(device), [after]

        def failing(work: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise ag.DeviceError(f"{device}: the device was lost.")
                return work(*args, **kwargs)

            return call

        for name in ("launch", "upload", "download", "look"):
            monkeypatch.setattr(backend, name, failing(getattr(backend, name)))

    return fail
