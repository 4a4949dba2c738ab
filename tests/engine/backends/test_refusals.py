"""A refusal of the driver is an error of ag that names the device, loses nothing, and ends when the driver relents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.devices import expect_reported as expect
from helpers.devices import run_code

import ag

pytestmark = pytest.mark.vulkan
Run = Callable[..., dict[str, Any]]
NO_MEMORY, UNKNOWN, LOST = "-2", "-13", "-4"  # VkResults
NO_HOST_MEMORY = "-1"
SAID = {"vkCreateCommandPool": "vkCreateCommandPool", "vkAllocateCommandBuffers": "vkAllocateCommandBuffers",
        "vkBeginCommandBuffer": "CommandBuffer::begin", "vkEndCommandBuffer": "CommandBuffer::end",
        "vkCreateFence": "createFence", "vkQueueSubmit": "vkQueueSubmit", "vkWaitForFences": "vkWaitForFences"}

BEGIN = """
import os
from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import add

OPS = iter([ag.ag_exp, ag.ag_tanh, ag.ag_sigmoid, ag.ag_sqrt, ag.ag_abs, ag.ag_relu, ag.ag_gelu, ag.ag_silu])

def refusing(calls, result, action):
    '''What an action raises while these calls are refused.'''
    os.environ.update(KPFAULT_REFUSE=calls, KPFAULT_RESULT=result)
    try:
        return error_of(action)
    finally:
        del os.environ["KPFAULT_REFUSE"]

def counted(backend):
    '''A number on a device, and what adds one to it so many times.'''
    number, one = backend.zeros((1, 1), F32), backend.alloc((1, 1), F32)
    backend.upload(np.ones((1, 1), np.float32), one)

    def add_ones(times):
        for _ in range(times):
            backend.launch(add, number, one, into=number)

    add_ones(1)
    return number, add_ones
"""


@pytest.fixture
def run(layer: dict[str, str], lavapipe: str) -> Run:
    def run(code: str, **environment: str) -> dict[str, Any]:
        return run_code(f"DEVICE = {lavapipe!r}\n{BEGIN}{code}", **layer, **environment)

    return run


OPEN = """
said["named"] = error_of(lambda: ag.ag_device("vulkan:0"))
said["gpu"] = error_of(lambda: ag.ag_device("gpu"))
said["auto"] = [error_of(lambda: ag.ag_device("auto")), ag.ag_default_device()]
said["cpu"] = ag.ag_sum(ag.ag_tensor([1.0, 2.0])).item()
said["open"] = [backend.name for backend in ag.engine.device.open_backends()]
for name in [name for name in os.environ if name.startswith("KPFAULT")]:
    del os.environ[name]
for name in ("auto", "gpu", "vulkan:0"):
    with ag.ag_device(name):
        said[f"{name} again"] = [ag.ag_default_device(), ag.ag_sum(ag.ag_tensor([1.0, 2.0])).item()]
said["closed"] = error_of(ag.ag_shutdown)
"""
FULL = "has no memory left to be opened", "close what else uses it", "'cpu'"


@pytest.mark.parametrize("faults", [
    pytest.param({"KPFAULT_ALLOC_LIMIT": "0"}, id="nothing"),
    pytest.param({"KPFAULT_ALLOC_LIMIT": str(20 << 20)}, id="20 MiB", marks=pytest.mark.slow),
    pytest.param({"KPFAULT_REFUSE": "vkCreateDevice"}, id="no device", marks=pytest.mark.slow)])
def test_a_full_card_is_opened_by_nobody(run: Run, faults: dict[str, str]) -> None:
    said = run(OPEN, **faults, AG_SOFTWARE="1")
    expect("a device without memory", said["named"], ag.ArenaError, "vulkan:0: ", *FULL, "ErrorOutOfDeviceMemory")
    expect("ag_device('gpu') where all cards are full", said["gpu"], ag.DeviceError, "'gpu'", "vulkan:0: ", *FULL)
    assert said["auto"] == [None, "cpu"] and said["cpu"] == 3.0 and said["open"] == ["cpu"]
    lines = said["err"].splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["vulkan:0", "vulkan:1"][: len(lines)] and lines
    assert all(part in line for part in (*FULL, "passed over") for line in lines)
    for name in ("auto", "gpu", "vulkan:0"):
        assert said[f"{name} again"] == ["vulkan:0", 3.0]
    assert said["closed"] is None


def test_a_full_card_keeps_no_memory(run: Run) -> None:
    said = run("""
import gc, weakref
from ag.engine.backends.vulkan.devices import DRIVERS

gc.disable()
made = []
init = VulkanBackend.__init__

def noted(self, index):
    made.append(weakref.ref(self))
    try:
        init(self, index)
    finally:
        made.append(weakref.ref(self.arena))

VulkanBackend.__init__ = noted
said["error"] = error_of(lambda: ag.ag_device(DEVICE))
said["left"] = [ref() is not None for ref in made] + list(DRIVERS._managers)
""", KPFAULT_ALLOC_LIMIT=str(10 << 20))
    expect("a device without memory", said["error"], ag.ArenaError, *FULL)
    assert said["left"] == [False, False]


@pytest.mark.slow
def test_the_next_card_is_taken(run: Run, swiftshader: str) -> None:
    said = run("""
from ag.engine.backends.vulkan.kp import kompute
first = kompute().Manager(1)  # without it, drivers and layers are gone, and counts begin anew, when a card is closed
ag.ag_device("auto")
said["auto"] = ag.ag_default_device()
""", AG_SOFTWARE="1", KPFAULT_ALLOC_LIMIT="0", KPFAULT_DEVICE="1")
    assert said["auto"] == "vulkan:1"
    (line,) = said["err"].splitlines()
    assert line.startswith("vulkan:0: ") and FULL[0] in line


@pytest.mark.slow
def test_a_card_without_right_products_is_passed_over(run: Run) -> None:
    said = run("""
from ag.engine.backends.vulkan import backend
def wrong(*_):
    raise ag.KernelError("Vulkan: products of matrices come out wrong; install a newer driver.")
backend.tried = wrong
said["auto"] = [error_of(lambda: ag.ag_device("auto")), ag.ag_default_device()]
said["named"] = error_of(lambda: ag.ag_device(DEVICE))
""", AG_SOFTWARE="1")
    assert said["auto"] == [None, "cpu"] and "come out wrong" in said["err"]
    expect("a device whose products are wrong", said["named"], ag.KernelError, "come out wrong")


@pytest.mark.slow
def test_the_doctor_says_that_a_card_is_full(run: Run, lavapipe: str) -> None:
    said = run("from ag.tools.doctor import fault_of\nsaid['fault'] = fault_of(DEVICE)\n", KPFAULT_ALLOC_LIMIT="0")
    assert said["fault"].startswith(f"{lavapipe}: ") and FULL[0] in said["fault"]


KERNELS = """
x, y = (ag.ag_tensor(np.full((2, 3), 0.25), device=name) for name in (DEVICE, "cpu"))
for call in CALLS:
    for result in RESULTS:
        op = next(OPS)
        error = refusing(call, result, lambda: op(x).numpy())
        said.setdefault("found", []).append([call, op.__name__, error, np.allclose(op(x).numpy(), op(y).numpy())])
"""


def test_a_kernel(run: Run, lavapipe: str) -> None:
    calls, results = ["vkCreateComputePipelines", "vkCreateDescriptorPool"], [NO_MEMORY, NO_HOST_MEMORY, UNKNOWN, LOST]
    said = run(KERNELS.replace("CALLS", repr(calls)).replace("RESULTS", repr(results)))
    for i, (call, op, error, right) in enumerate(said["found"]):
        kind, *fragments = {
            NO_MEMORY: (ag.ArenaError, f"{lavapipe}: ", "ErrorOutOfDeviceMemory", "free tensors"),
            NO_HOST_MEMORY: (ag.ArenaError, f"{lavapipe}: ", "ErrorOutOfHostMemory"),
            UNKNOWN: (ag.KernelError, f"driver of {lavapipe}", op.removeprefix("ag_"), "ErrorUnknown", "update"),
            LOST: (ag.DeviceError, f"{lavapipe}: the device was lost", "checkpoint")}[results[i % 4]]
        expect(f"{op} and {call} is refused", error, kind, call, *fragments)
        assert right, op


COUNTED = """
backend = backend_of(DEVICE)
number, add_ones = counted(backend)

def found(call, result, times):
    before = float(backend.download(number)[0, 0])
    backend.recorder._idle.clear()  # so that sequences are made
    launched = refusing(call, result, lambda: add_ones(times))
    read = refusing(call, result, lambda: backend.download(number))
    waited = refusing(call, result, backend.synchronize)
    return launched, read, waited, float(backend.download(number)[0, 0]) - before

said["found"] = [found(*case) for case in CASES]
"""


def test_launches_are_made_once_as_soon_as_they_can_be(run: Run, lavapipe: str) -> None:
    """Many are recorded while nothing can be started, and none fails; whoever reads hears of it, until it works."""
    cases = [(call, NO_MEMORY, 300) for call in SAID] + [("vkQueueSubmit", NO_HOST_MEMORY, 300)]
    cases += [("vkWaitForFences", NO_MEMORY, 3000)]  # so many that recording them waits
    cases += [(call, UNKNOWN, 5) for call in ("vkCreateFence", "vkQueueSubmit")]
    said = run(COUNTED.replace("CASES", repr(cases)))
    for (call, result, times), (launched, *errors, added) in zip(cases, said["found"], strict=True):
        assert launched is None and added == times, call
        kind, why, remedy = ((ag.DeviceError, "ErrorUnknown", "another device") if result == UNKNOWN else
                             (ag.ArenaError, "ErrorOutOf", "free"))
        for error in errors:
            expect(f"{call} is refused", error, kind, f"{lavapipe}: ", f"{SAID[call]}: {why}", remedy)
    assert said["err"] == ""


PROGRAM = """
backend = backend_of(DEVICE)
number, add_ones = counted(backend)
with record(backend) as recording:
    add_ones(3)
program = recording.finished()
for _ in range(2):
    program.run()
before = float(backend.download(number)[0, 0])
played = refusing(CALL, "-2", lambda: [program.run() for _ in range(4)])
read = refusing(CALL, "-2", lambda: backend.download(number))
said["found"] = [played, read, float(backend.download(number)[0, 0]) - before]
"""


@pytest.mark.slow
def test_a_program_runs_as_often_as_it_was_started(run: Run, lavapipe: str) -> None:
    """Two of its sequences are there, and the third run waits for one of them: it is refused, and was not started."""
    played, read, added = run(PROGRAM.replace("CALL", "'vkQueueSubmit'").replace("range(4)", "range(2)"))["found"]
    assert played is None and added == 6
    expect("a program that cannot be started", read, ag.ArenaError, f"{lavapipe}: ", "vkQueueSubmit")


TIMES = """
x = ag.ag_tensor(np.ones((2, 3)), device=DEVICE)
y = ag.ag_exp(x).numpy()

def profiled():
    with ag.profile() as seen:
        for _ in range(3):
            z = ag.ag_exp(x)
        z.numpy()
    return [event.kernel for event in seen.events]

said["pool"] = [refusing("vkCreateQueryPool", "-2", profiled), profiled()]
for result in ("-2", "-4"):
    with ag.profile() as seen:
        z = ag.ag_exp(x)
        error = refusing("vkGetQueryPoolResults", result, z.numpy)
        z.numpy()
    said[result] = [error, [event.kernel for event in seen.events]]
    ag.ag_shutdown()
    x = ag.ag_tensor(np.ones((2, 3)), device=DEVICE)
"""


def test_a_profile(run: Run, lavapipe: str) -> None:
    said = run(TIMES)
    error, events = said["pool"]
    expect("a profile without memory", error, ag.ArenaError, f"{lavapipe}: ", "createQueryPool")
    assert events == ["exp"] * 3
    error, events = said[NO_MEMORY]
    expect("times that are not told", error, ag.ArenaError, f"{lavapipe}: ", "vkGetQueryPoolResults")
    assert events == ["exp"]  # which was not lost
    expect("times of a lost device", said[LOST][0], ag.DeviceError, f"{lavapipe}: the device was lost",
           "vkGetQueryPoolResults", "costliest launch is exp")


STAGED = """
backend = backend_of(DEVICE)
step = ag.ag_capture(lambda x: ag.ag_exp(x))
values = [np.full((2, 3), k, np.float32) for k in range(4)]
with ag.ag_device(DEVICE):
    step(values[0]).numpy()
    said["given"] = refusing("vkAllocateMemory,vkMapMemory", "-2", lambda: step(values[1]).numpy())
    said["right"] = [bool(np.allclose(step(v).numpy(), np.exp(v))) for v in values]
    said["more"] = refusing("vkAllocateMemory", "-2", lambda: ag.ag_tensor(np.ones(1 << 22, np.float32)))
    said["sum"] = ag.ag_sum(ag.ag_tensor(np.ones(1 << 22, np.float32))).item()
    said["buffer"] = refusing("vkCreateBuffer", "-2", lambda: ag.ag_tensor(np.ones(1 << 24, np.float32)))
    said["sums"] = ag.ag_sum(ag.ag_tensor(np.ones(1 << 24, np.float32))).item()
"""


@pytest.mark.slow
def test_staging_memory(run: Run) -> None:
    said = run(STAGED, KPFAULT_MAP_LIMIT=str(8 << 20))  # of chunks, and no segment
    assert said["given"] is None and said["right"] == [True] * 4
    for name in ("more", "buffer"):
        expect("a tensor for which there is no memory", said[name], ag.ArenaError, "bytes left", "smaller batches")
    assert said["sum"] == 1 << 22 and said["sums"] == 1 << 24


@pytest.mark.slow
def test_an_examination(run: Run) -> None:
    said = run("""
ag.ag_sum(ag.ag_tensor([1.0], device=DEVICE)).item()
found = []
said["error"] = refusing("vkCreateComputePipelines", "-2", lambda: found.extend(backend_of(DEVICE).examine()))
said["speed"] = found[-1].found
said["again"] = backend_of(DEVICE).examine()[-1].found
""")
    assert said["error"] is None
    assert said["speed"].startswith("not measured (vulkan:") and "vkCreateComputePipelines" in said["speed"]
    assert "GB/s" in said["again"]


HANDLER = """
import signal
x = ag.ag_tensor(np.ones((2, 3)), device=DEVICE)
x.numpy()
for kind in (RuntimeError, MemoryError):
    def raises(*_):
        raise kind("mine")
    signal.signal(signal.SIGALRM, raises)
    y = x + x
    os.environ["KPFAULT_DELAY_US"] = "400000"
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        y.numpy()
    except (RuntimeError, MemoryError) as error:
        said[kind.__name__] = [type(error).__name__, str(error)]
    del os.environ["KPFAULT_DELAY_US"]
    said.setdefault("right", []).append(y.numpy().tolist())
"""


def test_what_a_handler_raises_is_its_own(run: Run) -> None:
    said = run(HANDLER)
    for name in ("RuntimeError", "MemoryError"):
        assert said[name] == [name, "mine"]
    assert said["right"] == [[[2.0] * 3] * 2] * 2


def test_every_call_of_a_manager_is_guarded(run: Run, lavapipe: str) -> None:
    """Of the whole of kp, a manager's errors are the only ones that a proxy can guard; nobody has another one."""
    said = run("""
manager = backend_of(DEVICE)._manager
said["kind"] = type(manager).__module__
said["error"] = error_of(lambda: manager.arena(1 << 31))
said["kept"] = manager.arena is manager.arena
""")
    assert said["kind"] == "ag.engine.backends.vulkan.kp" and said["kept"]
    expect("4 GiB in a tensor of kp", said["error"], ag.DeviceError, f"{lavapipe}: the driver refuses", "4 GiB")
