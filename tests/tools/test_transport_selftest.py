"""The transport self-test: right on every pair of devices, and it notices what does not arrive."""

from __future__ import annotations

from importlib import import_module

import pytest

import ag

TRANSPORT = import_module("ag.tools.transport_selftest")


def test_every_pair_both_ways() -> None:
    found = ag.transport_selftest(["cpu", "cpu:1", "cpu:2", "cpu"], elements=1000)
    names = ["cpu", "cpu:1", "cpu:2"]
    assert [(t.source, t.target) for t in found] == [(a, b) for a in names for b in names if a != b]
    assert all(t.correct and t.gb_per_s > 0 and not t.fault for t in found)


@pytest.mark.vulkan
def test_two_vendors_and_the_cpu(lavapipe: str, swiftshader: str) -> None:
    found = ag.transport_selftest(elements=4099)
    pairs = {(t.source, t.target) for t in found}
    assert pairs >= {(lavapipe, swiftshader), (swiftshader, lavapipe), ("cpu", lavapipe)}
    assert all(t.correct for t in found)


def test_zeros_that_arrive_without_an_error_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    # what a copy between two cards by a shared file descriptor is known to deliver
    monkeypatch.setattr(TRANSPORT, "ag_to_device", lambda t, device: ag.ag_tensor([0.0] * t.size, device=device))
    found = ag.transport_selftest(["cpu", "cpu:1"], elements=100)
    assert [(t.correct, t.gb_per_s, t.fault) for t in found] == [(False, 0.0, "100 of 100 numbers arrived wrong")] * 2


def test_a_transfer_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(t: ag.Tensor, device: str) -> ag.Tensor:
        raise ag.DeviceError(f"{device}: lost")

    monkeypatch.setattr(TRANSPORT, "ag_to_device", lost)
    assert [t.fault for t in ag.transport_selftest(["cpu", "cpu:1"], 10)] == ["cpu:1: lost", "cpu: lost"]


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="elements is 0"):
        ag.transport_selftest(["cpu"], elements=0)
    with pytest.raises(ag.DeviceError, match="unknown device 'cuda:0'"):
        ag.transport_selftest(["cpu", "cuda:0"])
    assert ag.transport_selftest(["cpu"]) == []
