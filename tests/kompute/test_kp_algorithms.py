"""Algorithms that several threads make: like those made alone, whoever destroys or interrupts meanwhile."""

import threading
import time

import numpy as np
import pytest

NONE, FOUR = np.zeros(0, np.uint32), np.zeros(4, np.uint32)


def asked(rig, code, push=FOUR):
    return [rig.arena, rig.arena], code, (1, 1, 1), NONE, push, 0


def test_they_are_like_those_made_alone(rig, spirv_file, expected):
    values = np.arange(1000, dtype=np.uint32)
    rig.write(values)
    before = rig.manager.pipelines()
    code = spirv_file.read_bytes()
    for threads in (1, 3, 20):
        made = rig.manager.algorithms([asked(rig, code)] * 5, threads)
        for k, algorithm in enumerate(made):
            rig.algorithm = algorithm
            sequence = rig.manager.sequence()
            rig.step(sequence, 0, 1024 * (k + 1), 1000)
            sequence.eval()
            assert np.array_equal(rig.read(1000, 1024 * (k + 1)), expected(values, 1))
    assert rig.manager.pipelines() - before == 15
    assert rig.manager.algorithms([], 2) == []


def test_what_cannot_be_made_is_none(rig, spirv_file):
    code = spirv_file.read_bytes()
    before = rig.manager.pipelines()
    made = rig.manager.algorithms([asked(rig, b"this is not SPIR-V at all..."), asked(rig, code)], 2)
    assert made[0] is None and made[1].is_init() and rig.manager.pipelines() - before == 1
    with pytest.raises(RuntimeError, match="whole words"):
        rig.manager.algorithms([asked(rig, code), asked(rig, code[:-1])], 2)
    with pytest.raises(RuntimeError, match="whole words"):
        rig.manager.algorithms([asked(rig, code), ([], *asked(rig, code)[1:])], 2)
    with pytest.raises(TypeError):
        rig.manager.algorithms([asked(rig, code, np.zeros(4, np.float32))], 2)
    assert rig.manager.pipelines() - before == 1


def test_the_cache_is_added_to_meanwhile(rig, spirv_file):
    code, kept = spirv_file.read_bytes(), rig.manager.pipeline_cache()
    made = []
    thread = threading.Thread(target=lambda: made.extend(rig.manager.algorithms([asked(rig, code)] * 100, 4)))
    thread.start()
    while thread.is_alive():
        rig.manager.add_pipeline_cache(kept)
        time.sleep(0)  # lets go of Python's lock
    thread.join()
    assert len(made) == 100 and all(algorithm.is_init() for algorithm in made)


SLOW = """
import numpy as np, os, signal, threading, time
spirv = open({spirv!r}, "rb").read()
m = kp.Manager()
arena = m.arena(1 << 16)
asked = [([arena, arena], spirv, (1, 1, 1), np.zeros(0, np.uint32), np.zeros(4, np.uint32), 0)] * 6
os.environ["KPFAULT_PIPELINE_MS"] = "100"
"""


def test_the_manager_is_destroyed_meanwhile(python, spirv_file, fault_layer):
    out = python(SLOW.format(spirv=str(spirv_file)) + """
found = []
thread = threading.Thread(target=lambda: found.extend(m.algorithms(asked, 2)))
thread.start()
time.sleep(0.15)
m.destroy()
thread.join()
print(found)
""", **fault_layer)
    assert out.split() == ["[None,", *["None,"] * 4, "None]"]


def test_a_handler_that_raises(python, spirv_file, fault_layer):
    out = python(SLOW.format(spirv=str(spirv_file)) + """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
threading.Timer(0.15, os.kill, (os.getpid(), signal.SIGINT)).start()
began = time.perf_counter()
try:
    m.algorithms(asked * 100, 2)
except KeyboardInterrupt:
    print(time.perf_counter() - began < 15, m.pipelines())  # all would take 30 seconds
print(len(m.algorithms(asked, 6)), m.pipelines())
m.destroy()
""", **fault_layer)
    assert out.split() == ["True", "0", "6", "6"]
