"""Objects may go in any order, live long, and be alive when the interpreter exits."""

import os

LIVE = """
import numpy as np, sys, threading, time
spirv = open({spirv!r}, "rb").read()
def busy(m, launches=6):
    arena = m.arena(1 << 16)
    a = m.algorithm([arena, arena], spirv, (1, 1, 1), np.zeros(0, np.uint32), np.zeros(4, np.uint32))
    s = m.sequence()
    for _ in range(launches):
        s.dispatch(a, np.array([0, 0, 1 << 12, 60000], np.uint32).tobytes(), 64)
    return s
"""


def code(spirv_file, body):
    return LIVE.format(spirv=str(spirv_file)) + body


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_thousands_of_recordings_take_no_memory(rig):
    sequence = rig.manager.sequence()

    def record(times):
        for _ in range(times):
            sequence.clear()
            for _ in range(10):
                rig.step(sequence, 0, 1024, 64)
            sequence.eval()

    record(500)
    before = resident_bytes()
    record(2_000)
    assert resident_bytes() - before < 4 << 20


def test_interpreter_exit_with_live_managers(python, spirv_file):
    body = """
managers = [kp.Manager(), kp.Manager()]
sequences = [busy(m) for m in managers]
for s in sequences:
    s.eval_async()
sys.keep = managers, sequences
managers.append(managers)  # a cycle
print("end")
"""
    assert python(code(spirv_file, body)) == "end\n"


def test_use_after_destroy_is_an_error(python, spirv_file):
    body = """
m = kp.Manager()
s, timed, t = busy(m), m.sequence(0, 2), m.tensor(np.zeros(4))
arena = m.arena(16)
a = m.algorithm([arena, arena], spirv, (1, 1, 1), [], [0.0] * 4)
s.eval_async()
timed.record(kp.OpBarrier())  # still recording
m.destroy()
m.destroy()
calls = [s.eval, s.eval_async, timed.eval, lambda: s.dispatch(a, bytes(16), 1), timed.get_timestamps,
         lambda: s.record(kp.OpBarrier()), t.data, lambda: m.arena(16), m.sequence,
         lambda: m.tensor(np.zeros(4)), lambda: m.algorithm([arena], spirv), m.list_devices,
         m.get_device_properties, m.memory_heaps]
for number, call in enumerate(calls):
    try:
        call()
        print("no error from call", number)
    except RuntimeError:
        pass
for call in (s.clear, s.destroy, s.wait, s.rerecord, timed.clear, a.destroy, t.destroy, arena.destroy,
             m.clear):
    call()
print(s.is_init(), s.is_running(), s.is_recording(), timed.is_recording(), a.is_init(), t.is_init())
"""
    assert python(code(spirv_file, body)) == "False False False False False False\n"


def test_dropping_things_while_they_run(python, spirv_file):
    body = """
m = kp.Manager()
busy(m).eval_async()          # the sequence goes, then its algorithm and arena
s = busy(m)
s.eval_async()
del m                         # the device goes, with the sequence running
s.wait()
print(s.is_init())
"""
    assert python(code(spirv_file, body)) == "False\n"


def test_destroy_in_one_thread_during_a_wait_in_another(python, spirv_file):
    body = """
m = kp.Manager()
for destroy in ("sequence", "manager"):
    s = busy(m)
    s.eval_async()
    waiting, results = threading.Event(), []
    def wait():
        waiting.set()
        results.append(s.wait())
    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    waiting.wait()
    time.sleep(0.01)
    (s if destroy == "sequence" else m).destroy()
    for thread in threads:
        thread.join()
    print(results, s.is_init())
"""
    assert python(code(spirv_file, body)) == "[True, True, True] False\n" * 2


def test_import_leaves_logging_alone(python):
    assert python("import logging; print(logging.getLogger().handlers)") == "[]\n"
