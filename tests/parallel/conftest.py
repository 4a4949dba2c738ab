"""Devices that fail, for the tests of what goes on without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ag
from ag.engine.device import backend_of


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
