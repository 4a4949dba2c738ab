"""Bad calls: the named error, a message that says what was given and what to do, and nothing changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from helpers.errors import expect_error
from table.cases import CASES, ROWS
from table.rows import Bad, Case, tensor

import ag
from ag.autograd.tensor import Tensor
from ag.engine.device import backend_of

BAD = [bad for row in ROWS for bad in row.bad]
SEVERAL = [case for case in {case.row.name + case.row.label: case for case in CASES}.values()
           if sum(x.dtype.kind == "f" for x in case.operands()) > 1]


def unchanged(tensors: Sequence[Tensor], values: Sequence[np.ndarray], device: str) -> None:
    """The tensors hold what they held and the settings are what they were."""
    for t, value in zip(tensors, values, strict=True):
        np.testing.assert_array_equal(t.numpy(), value)
        assert t.grad is None
    assert (ag.ag_default_device(), ag.ag_default_dtype()) == (device, "f32")


@pytest.mark.slow_on("swiftshader")
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.situation.replace(" ", "_"))
def test_bad_call(device: str, bad: Bad) -> None:
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(shape).astype(np.float32) for shape in bad.shapes]
    tensors = [tensor(x, backend_of(device), param=True) for x in values]
    with ag.with_grad_tape(), expect_error(bad.situation, bad.error, *bad.fragments):
        bad.call(*tensors)
    unchanged(tensors, values, device)


@pytest.mark.slow_on("swiftshader")
@pytest.mark.parametrize("case", SEVERAL, ids=str)
def test_operands_on_two_devices(device: str, case: Case) -> None:
    given = case.on(backend_of(device), case.operands())
    last = max(i for i, x in enumerate(given) if isinstance(x, Tensor))
    given[last] = tensor(case.operands()[last], backend_of("cpu:1"))
    with expect_error("operands on two devices", ag.DeviceError, device, "cpu:1", "ag_to_device"):
        case.call(*given)


@pytest.mark.parametrize("case", SEVERAL, ids=str)
def test_operands_of_two_element_types(case: Case) -> None:
    cpu = backend_of("cpu")
    given = case.on(cpu, case.operands())
    last = max(i for i, x in enumerate(given) if isinstance(x, Tensor))
    given[last] = tensor(case.operands()[last], cpu, "f64")
    with expect_error("operands of two element types", ag.DtypeError, "f32", "f64", "must be equal"):
        case.call(*given)


@pytest.mark.vulkan
def test_float64_stays_on_the_cpu(lavapipe: str) -> None:
    x = ag.ag_tensor([1.0], dtype="f64")
    with expect_error("float64 on a Vulkan device", ag.DtypeError, lavapipe, "cannot hold f64", "f32"):
        ag.ag_to_device(x, lavapipe)
