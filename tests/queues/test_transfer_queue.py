"""Uploads beside launches, on a card with a queue for them: every value is what it would be with one queue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.devices import built_layers
from queues.conftest import GIB, Queued

BEGIN = """
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import add
backend = backend_of(DEVICE)
recorder = backend.recorder
rng = np.random.default_rng(0)

def busy():
    "Give the device something to do that touches nothing else."
    global kept
    kept = backend.alloc((1 << 18,), F32)
    backend.upload(np.ones(1 << 18, np.float32), kept)
    kept = backend.launch(add, kept, kept)
    backend.submit()
    assert not recorder.idle
"""


def test_the_device_has_two_queues(queued: Queued) -> None:
    said = queued(BEGIN + """
said["apart"] = backend._manager.transfers_apart()
said["family"] = backend._manager.get_device_properties()["transfer_family"]
said["said"] = {line.subject: line.found for line in backend.examine()}["queue"]
""")
    assert said["apart"] and said["family"] == 1
    assert said["said"] == "family 0, which draws, too; uploads in family 1"


def test_without_timelines_there_is_one(queued: Queued) -> None:
    said = queued(BEGIN + """
said["apart"] = backend._manager.transfers_apart()
busy()
backend.upload(np.ones(4 << 20, np.float32), backend.alloc((4 << 20,), F32))
backend.synchronize()
""", AG_QUEUES_TIMELINE="0")
    assert not said["apart"] and "c" not in said["log"]


@pytest.mark.parametrize("mib", [1, 4, 9, 40])
def test_an_upload_goes_beside_launches_and_arrives_before_those_after_it(queued: Queued, mib: int) -> None:
    said = queued(BEGIN + """
values = rng.standard_normal((MIB << 18) + 5).astype(np.float32)
busy()
x = backend.alloc(values.shape, F32)
backend.upload(values, x)
twice = backend.launch(add, x, x)
said["twice"] = bool(np.array_equal(backend.download(twice), 2 * values))
said["same"] = bool(np.array_equal(backend.download(x), values))
said["ones"] = bool((backend.download(kept) == 2).all())
busy()
backend.upload(values, x)
backend.synchronize()
said["left"] = recorder.beside.busy
""".replace("MIB", str(mib)))
    assert said["twice"] and said["same"] and said["ones"] and not said["left"]
    assert said["log"].count("c") == 2 * -(-(mib + 1e-6) // 4)
    assert "1 2" in said["shared"] and "0 0" in said["shared"]


def test_words_that_launches_read_are_not_overtaken(queued: Queued) -> None:
    said = queued(BEGIN + """
n = 1 << 19
x = backend.alloc((n,), F32)
seen = []
for k in range(4):
    backend.upload(np.full(n, k, np.float32), x)
    seen.append(backend.launch(add, x, x))
    if k % 2:
        busy()
said["seen"] = [np.unique(backend.download(y)).tolist() for y in seen]
""")
    assert said["seen"] == [[2.0 * k] for k in range(4)]
    assert "c" in said["log"]


def test_an_upload_onto_an_upload(queued: Queued) -> None:
    said = queued(BEGIN + """
n = 2 << 20  # in two pieces, where four may be on their way
x = backend.alloc((n,), F32)
busy()
for k in range(4):
    backend.upload(np.full(n, k, np.float32), x)
said["seen"] = np.unique(backend.download(x)).tolist()
""")
    assert said["seen"] == [3.0]


BAR = {"AG_LIMITS_MEMORY": f"{80 * GIB}:1:7,{16 * GIB}:6:14"}  # of which the host sees all


def test_memory_that_the_host_writes_and_an_upload_is_on_its_way_to(queued: Queued) -> None:
    said = queued(BEGIN + """
x = backend.alloc((5 << 20,), F32)
wrong = []
for k in range(4):
    busy()
    backend.upload(np.full(5 << 20, -1, np.float32), x)
    backend.transfers.upload(x.address + (16 << 20), np.full(1 << 20, k, np.float32).view(np.uint32))
    seen = backend.download(x)
    wrong.append(int((seen[4 << 20 :] != k).sum() + (seen[: 4 << 20] != -1).sum()))
said["wrong"] = wrong
""", **BAR)
    assert said["wrong"] == [0] * 4 and "c" in said["log"]


def test_memory_of_which_the_upload_was_given_up(queued: Queued) -> None:
    """It is given to others, whose launches come after the upload."""
    said = queued(BEGIN + """
n = 5 << 20
one = backend.alloc((n,), F32)
backend.upload(np.ones(n, np.float32), one)
backend.synchronize()
wrong = []
for k in range(4):
    busy()
    x = backend.alloc((n,), F32)
    where = x.address
    backend.upload(np.full(n, -1, np.float32), x)
    del x
    y = backend.launch(add, one, one)
    assert y.address == where
    wrong.append(int((backend.download(y) != 2).sum()))
said["wrong"] = wrong
""")
    assert said["wrong"] == [0] * 4 and "c" in said["log"]


def test_a_profile_and_an_idle_device_have_one_queue(queued: Queued) -> None:
    said = queued(BEGIN + """
n = 2 << 20
backend.upload(np.ones(n, np.float32), backend.alloc((n,), F32))
backend.synchronize()
with ag.profile() as profile:
    busy()
    backend.upload(np.ones(n, np.float32), backend.alloc((n,), F32))
    backend.synchronize()
said["transfers"] = sum(event.kernel == "transfer" for event in profile.events)
""")
    assert "c" not in said["log"] and said["transfers"] >= 2


TRAINING = """
from ag import nn, optim, ops
rng = np.random.default_rng(1)
batches = [(rng.standard_normal((4096, 128)).astype(np.float32), rng.integers(0, 10, 128)) for _ in range(6)]

def trained(captured, ahead):
    ag.ag_seed(3)
    with ag.ag_device(DEVICE):
        model = nn.Sequential(nn.Linear(4096, 32, activation="relu"), nn.Linear(32, 10))
        optimizer = optim.Adam(model, lr=1e-2)
        def step(x, y):
            with ag.with_grad_tape():
                loss = ops.softmax_cross_entropy_loss(model(x), y)
            optimizer.step(ag.backward(loss))
            return loss
        if captured:
            step = ag.ag_capture(step)
        put = (lambda x: ag.ag_tensor(x, DEVICE)) if ahead else (lambda x: x)
        losses, coming = [], put(batches[0][0])
        for i in range(10):
            x = coming
            losses.append(step(x, batches[i % 6][1]))
            coming = put(batches[(i + 1) % 6][0])
        return [loss.item() for loss in losses], [p.numpy().tobytes().hex() for p in model.parameters().values()]

kinds = [trained(captured, ahead) for captured in (False, True) for ahead in (False, True)]
said["same"] = [kind == kinds[0] for kind in kinds]
said["losses"] = kinds[0][0]
"""


@pytest.mark.slow
def test_training_with_the_next_batch_on_its_way(queued: Queued) -> None:
    said = queued(BEGIN + TRAINING)
    alone = queued(BEGIN + TRAINING, AG_QUEUES_TIMELINE="0")
    assert said["same"] == [True] * 4 and said["losses"] == alone["losses"]
    assert said["log"].count("c") >= 10
    assert "c" not in alone["log"]


RANDOM = """
wrong = 0
for seed in range(SEEDS):
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.choice([7, 1 << 18, 1 << 19, 3 << 19], 3)]
    n = max(sizes)
    live = []
    for _ in range(40):
        what = rng.choice(["upload", "again", "launch", "drop", "read", "submit"], p=[.3, .2, .25, .1, .1, .05])
        if what == "upload" or not live:
            value = rng.integers(0, 9, int(rng.choice(sizes))).astype(np.float32)
            buffer = backend.alloc(value.shape, F32)
            backend.upload(value, buffer)
            live.append((buffer, value))
        elif what == "again":
            i = rng.integers(len(live))
            buffer, value = live[i]
            value = rng.integers(0, 9, value.shape).astype(np.float32)
            backend.upload(value, buffer)
            live[i] = buffer, value
        elif what == "launch":
            a, va = live[rng.integers(len(live))]
            same = [(b, vb) for b, vb in live if vb.shape == va.shape]
            b, vb = same[rng.integers(len(same))]
            live.append((backend.launch(add, a, b), va + vb))
        elif what == "drop":
            live.pop(rng.integers(len(live)))
        elif what == "read":
            buffer, value = live[rng.integers(len(live))]
            wrong += not np.array_equal(backend.download(buffer), value)
        else:
            backend.submit()
    wrong += sum(not np.array_equal(backend.download(buffer), value) for buffer, value in live)
    live.clear()
said["wrong"] = wrong
"""


@pytest.mark.slow
def test_random_programs(queued: Queued) -> None:
    said = queued(BEGIN + RANDOM.replace("SEEDS", "12"))
    assert said["wrong"] == 0 and said["log"].count("c") > 40


VALIDATION = Path("/usr/share/vulkan/explicit_layer.d")


@pytest.mark.slow
@pytest.mark.skipif(not (VALIDATION / "VkLayer_khronos_validation.json").is_file(), reason="no validation layer here")
@pytest.mark.parametrize("wrong", [False, True])
def test_vulkan_allows_what_the_two_queues_do(queued: Queued, layers: dict[str, str], wrong: bool) -> None:
    """Says the validation layer, which sees two families, and would tell of a barrier that the second one has not."""
    barrier = """
kind = type(backend._manager.sequence())
copy = kind.copy
kind.copy = lambda self, *given: copy(self, *given[:5], True, *given[6:])
""" if wrong else ""
    first = {"VK_LAYER_PATH": f"{VALIDATION}:{layers['VK_LAYER_PATH']}", "VK_LOADER_LAYERS_DISABLE": "",
             "VK_INSTANCE_LAYERS": f"VK_LAYER_KHRONOS_validation:{layers['VK_INSTANCE_LAYERS']}"}
    said = queued(BEGIN + barrier + RANDOM.replace("SEEDS", "4"), **first)
    assert said["wrong"] == 0 and "c" in said["log"]
    assert ("VUID" in said["out"] + said["err"]) == wrong


HANDLER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from helpers.interrupts import at_place
from ag.engine.backends.vulkan import stream, transfer_queue, transfers
FILES = {{module.__file__ for module in (stream, transfer_queue, transfers)}}
n = (2 << 20) + 3
first, second, third, other = (np.arange(n, dtype=np.float32) * k for k in (1, -1, 2, 3))
x, z = backend.alloc((n,), F32), backend.alloc((n,), F32)
"""


@pytest.mark.parametrize("every", [17, pytest.param(2, marks=pytest.mark.slow)])
def test_a_handler_in_the_middle_of_an_upload(queued: Queued, every: int) -> None:
    said = queued(BEGIN + HANDLER + """
wrong, places = [], 0
for at in range(1, 400, EVERY):
    backend.upload(first, x)
    found = []

    def handler():
        busy()
        backend.upload(other, z)
        backend.upload(third, x)
        found.append(backend.launch(add, x, x))
        found.append(backend.launch(add, z, z))

    busy()
    with at_place(at, handler, lambda frame: frame.f_code.co_filename in FILES) as seen:
        backend.upload(second, x)
    if not found:
        break
    places += 1
    last = backend.download(x)
    if not np.array_equal(backend.download(found[0]), 2 * third) or \\
            not np.array_equal(backend.download(found[1]), 2 * other) or not ((last == second) | (last == third)).all():
        wrong.append(at)
said["wrong"], said["places"] = wrong, places
""".replace("EVERY", str(every)))
    assert said["wrong"] == [] and said["places"] > 100 // every and said["log"].count("c") > said["places"]


def test_an_interrupt_in_the_middle_of_an_upload(queued: Queued) -> None:
    said = queued(BEGIN + HANDLER + """
def interrupt():
    raise KeyboardInterrupt

wrong, places = [], 0
for at in range(1, 400, 3):
    busy()
    try:
        with at_place(at, interrupt, lambda frame: frame.f_code.co_filename in FILES):
            backend.upload(second, x)
        break
    except KeyboardInterrupt:
        places += 1
    y = backend.launch(add, x, x)  # takes memory, and comes after what is on its way
    backend.upload(first, x)
    if not np.array_equal(backend.download(x), first):
        wrong.append(at)
    del y
busy()
backend.upload(other, z)
said["last"] = bool(np.array_equal(backend.download(z), other))
said["wrong"], said["places"] = wrong, places
""")
    assert said["wrong"] == [] and said["places"] > 10 and said["last"]


@pytest.mark.parametrize("waits", range(0, 10, 2))
def test_a_device_that_is_lost(queued: Queued, tmp_path: Path, waits: int) -> None:
    layers = built_layers(tmp_path, "VK_LAYER_AG_limits", "VK_LAYER_AG_queues", "VK_LAYER_KP_fault")
    said = queued(BEGIN + """
import os
busy()
os.environ["KPFAULT_LOST_AFTER"] = "WAITS"

def work():
    while True:
        busy()
        n = 6 << 20
        x = backend.alloc((n,), F32)
        backend.upload(np.ones(n, np.float32), x)

said["error"] = error_of(work)
""".replace("WAITS", str(waits)), **layers)
    kind, text = said["error"]
    assert kind == "DeviceError" and "was lost" in text, json.dumps(said)
