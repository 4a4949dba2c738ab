"""Submitting without waiting, waiting with a limit, and what other threads may do meanwhile."""

import threading
import time
from pathlib import Path

import pytest


def test_eval_async_returns_while_the_work_runs(rig):
    sequence = rig.manager.sequence()
    rig.long_work(sequence)
    sequence.eval_async()
    assert sequence.is_running()
    assert not sequence.wait(0)
    assert sequence.is_running()
    assert sequence.wait()
    assert not sequence.is_running()
    assert rig.read(1 << 12).all()


def test_a_timeout_leaves_the_sequence_running(rig):
    sequence = rig.manager.sequence()
    rig.long_work(sequence)
    sequence.eval_async()
    for _ in range(3):
        sequence.eval_await(1000)
        assert sequence.is_running()
    with pytest.raises(RuntimeError):
        sequence.eval_async()
    with pytest.raises(RuntimeError):
        sequence.clear()
    with pytest.raises(RuntimeError):
        rig.step(sequence, 0, 0, 1)
    sequence.eval_await()
    assert not sequence.is_running()
    sequence.eval()
    assert rig.read(1 << 12).all()


@pytest.mark.parametrize("wait", ["eval", "eval_await", "wait"])
def test_another_thread_runs_during_the_wait(rig, wait):
    """The thread sleeps between counts, so it could count once at most if the GIL were held."""
    sequence = rig.manager.sequence()
    rig.long_work(sequence)
    counts, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counts[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    if wait != "eval":
        sequence.eval_async()
    before = counts[0]
    getattr(sequence, wait)()
    after = counts[0]
    stop.set()
    thread.join()
    assert after - before >= 10


SIGNAL = """
import os, signal, sys, threading, time
import numpy as np
sys.path.insert(0, TESTS)
from conftest import Rig
rig = Rig(kp, open(SPIRV, "rb").read())

def interrupted(wait, handler):
    signal.signal(signal.SIGINT, handler)
    sequence = rig.manager.sequence()
    rig.long_work(sequence)
    sequence.eval_async()
    sent = []
    threading.Timer(0.1, lambda: (sent.append(time.perf_counter()), os.kill(os.getpid(), signal.SIGINT))).start()
    try:
        wait(sequence)
        heard = None
    except KeyboardInterrupt:
        heard = time.perf_counter() - sent[0]
    return sequence, heard

for wait in (lambda s: s.eval_await(), lambda s: s.wait(10**11)):
    sequence, heard = interrupted(wait, signal.default_int_handler)
    assert heard is not None and sequence.is_running(), (heard, sequence.is_running())
    assert sequence.wait() and not sequence.is_running()

# A handler that waits itself, and has the sequence run again: whoever waited for the first run is answered.
def handler(*_):
    sequence.wait()
    sequence.eval_async()


sequence = rig.manager.sequence()
rig.long_work(sequence)
signal.signal(signal.SIGINT, handler)
sequence.eval_async()
threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
assert sequence.wait()
assert sequence.is_running()
sequence.wait()
assert rig.read(1 << 12).all()
print("heard")
"""


def test_signals_are_heard_in_waits(python, spirv_file):
    code = SIGNAL.replace("TESTS", repr(str(Path(__file__).parent))).replace("SPIRV", repr(str(spirv_file)))
    assert python(code, PYTHONPATH=str(Path(__file__).parents[1])).splitlines()[-1] == "heard"
