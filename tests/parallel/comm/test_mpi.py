"""Groups of processes: the suite of test_comm.py in them, ranks that are killed or stopped, and other ends."""

from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.ranks import UNDER_MPI, mpi_job, mpirun

import ag
from ag.parallel.comm.mpi_process import MpiProcess
from ag.parallel.comm.mpi_settings import (
    launcher_environment,
    mpiexec_arguments,
    rank_environment,
    started_by_launcher,
)

pytestmark = pytest.mark.skipif(UNDER_MPI, reason="starts processes itself")
HERE = Path(__file__).parent

BEGIN = """
import os, signal, sys, time
import numpy as np
import ag
from ag.parallel.comm.comm import everyone
from ag.parallel.comm.mpi import mpi_comm
comm = mpi_comm(100)
rank = comm.rank
"""


def script(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(BEGIN + text, "utf-8")
    return path


# ---------------------------------------------------------------------------------------------- the suite


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_the_suite_of_all_groups(ranks: int) -> None:
    status, text = mpirun(ranks, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", HERE / "test_comm.py",
                          timeout=500)
    assert status == 0 and text.count(" passed") == ranks and not re.search(r"\d+ failed(,| in)", text), text[-6000:]


# ---------------------------------------------------------------------------------------------- the start

START = """
import os, signal, sys, threading, time
import ag
from ag.parallel.comm import mpi_process
from ag.parallel.comm.mpi import mpi_comm
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
"""


def test_two_processes(tmp_path: Path) -> None:
    """Threads go on while MPI starts, and hear the launcher; then a sum, an agreement, the host, an orderly end."""
    path = tmp_path / "program.py"
    path.write_text(START + """
import numpy as np
seen = [mpi_process.progress()]
def look():
    while not os.path.exists(sys.argv[1]):
        seen.append(mpi_process.progress())
        if seen[-1] == "joining" and rank == 0:
            open(sys.argv[1] + " soon", "w").close()
        time.sleep(0.02)
watch = threading.Thread(target=look)
watch.start()
late = time.monotonic() + 10
while rank == 1 and not os.path.exists(sys.argv[1] + " soon") and time.monotonic() < late:
    time.sleep(0.02)
time.sleep(0.5 * rank)
comm = mpi_comm(60)
open(sys.argv[1], "w").close()
watch.join()
print(rank, *dict.fromkeys(seen), mpi_process.progress(), seen.count("joining") > 8, flush=True)
x = np.arange(5.0) + rank
comm.all_reduce(x)
assert comm.commit(True) and not comm.commit(rank == 0)
world = ag.DistributedWorld.init("mpi", devices=["cpu"])
print(x.tolist(), world.rank, world.size, world.local_rank, world.local_size, world.host == comm.hosts[rank])
""", "utf-8")
    status, text = mpirun(2, path, tmp_path / "over")
    assert status == 0 and re.search(r"^0 +joining (joined )?joined True$", text, re.M), text
    assert all(f"[1.0, 3.0, 5.0, 7.0, 9.0] {i} 2 {i} 2 True\n" in text for i in range(2)), text


@pytest.mark.slow
def test_a_process_that_is_late_is_waited_for(tmp_path: Path) -> None:
    """In the start of MPI longer than anywhere else: it may be on a slow file system, and still import."""
    path = tmp_path / "program.py"
    late = "mpi_process.TIMEOUT = 3.0\nif rank == 1: time.sleep(6)\nprint(mpi_comm(60).size)\n"
    path.write_text(START + late, "utf-8")
    assert mpirun(2, path) == (0, "2\n2\n")


@pytest.mark.slow
def test_processes_that_another_mpi_has_started(tmp_path: Path) -> None:
    """Each would be a world of its own, and all would write the same files."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI", "PRTE_"))}
    env |= {**launcher_environment(), "TMPDIR": str(tmp_path), "OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    code = "import ag\ntry: ag.DistributedWorld.init('mpi')\nexcept ag.CommError as error: print(error)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                           env={**env, "PMI_RANK": "0", "PMI_SIZE": "2"})
    assert "was started as one of 2, and its MPI finds no other" in found.stdout, found


@pytest.mark.slow
@pytest.mark.parametrize("when", ["MPI has started", "the process is there"])
def test_a_rank_is_lost_before_all_have_their_group(when: str, tmp_path: Path) -> None:
    """A named error, which says that the job can be started again: not that its script has failed."""
    path = tmp_path / "program.py"
    path.write_text(START + """
def die(*_):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
start = mpi_process._start
if sys.argv[1] == "MPI has started":
    mpi_process._start = lambda mpi: (start(mpi), die())
try:
    mpi_process.mpi_process()
    die()
    mpi_comm(60)
except ag.RankLostError as error:
    print(rank, error, mpi_process.progress(), flush=True)
""", "utf-8")
    status, text = mpirun(2, path, when)
    assert status == 0 and re.search(r"^0 mpi_comm: .* was lost.* joining$", text, re.M), text


# ---------------------------------------------------------------------------------------------- ranks that are lost

LOOP = """
left, kinds, steps, over = [*range(comm.size)], 6, 0, False
N, lives = 30_011, int(sys.argv[1])
comm.barrier()
print("pid", rank, os.getpid(), flush=True)
begin = time.monotonic()
while not over:
    while True:
        try:
            x, kind = np.arange(N) + 1000.0 * rank, steps % kinds
            total = np.arange(N) * len(left) + 1000.0 * sum(left)
            if kind == 0:
                comm.all_reduce(x)
                good = (x == total).all()
            elif kind == 1:
                good = (comm.reduce_scatter(x) == total[comm.shares_of(N)[comm.rank]]).all()
            elif kind == 2:
                good = (comm.all_gather(x[: N // 4 + rank]) ==
                        np.concatenate([np.arange(N // 4 + r) + 1000.0 * r for r in left])).all()
            elif kind == 3:
                comm.broadcast(x, comm.size - 1)
                good = (x == np.arange(N) + 1000.0 * left[-1]).all()
            elif kind == 4:
                comm.send(x, (comm.rank + 1) % comm.size)
                before = (comm.rank - 1) % comm.size
                good = (comm.recv(before) == np.arange(N) + 1000.0 * left[before]).all()
            else:
                parts = comm.all_to_all([x] * comm.rank)
                good = all((row == (np.arange(N) + 1000.0 * left[i])[comm.shares_of(N)[comm.rank]]).all()
                           for i, rows in enumerate(parts) for row in rows)
            assert good, (rank, kind, left)
            over = all(everyone(comm, len(left) == lives and time.monotonic() > begin + 1))
            if comm.commit(True):
                break
        except ag.RankLostError:
            pass
        comm, old = comm.survivors()
        left = [left[i] for i in old]
    steps += 1
print("end", rank, left, steps, flush=True)
"""


def disturbed(folder: Path, ranks: int, victims: dict[int, float], what: int, detector: float = 10.0) -> str:
    """The output of the loop, some of whose ranks get a signal, each so many seconds after it began."""
    with mpi_job(ranks, script(folder, LOOP), ranks - len(victims), detector=detector) as job:
        assert job.stdout is not None
        pids: dict[int, int] = {}
        while len(pids) < ranks:
            line = job.stdout.readline()
            assert line, "the job ended too early"
            if found := re.match(r"pid (\d+) (\d+)", line):
                pids[int(found[1])] = int(found[2])
        begin = time.monotonic()
        for rank, when in sorted(victims.items(), key=lambda item: item[1]):
            time.sleep(max(0.0, begin + when - time.monotonic()))
            os.kill(pids[rank], what)
        if what == signal.SIGSTOP:  # mpiexec would wait for it
            text = ""
            while text.count("end ") < ranks - len(victims):
                line = job.stdout.readline()
                assert line, text
                text += line
            for rank in victims:
                os.kill(pids[rank], signal.SIGKILL)
            text += job.communicate(timeout=60)[0]
        else:
            text = job.communicate(timeout=100)[0]
        assert job.returncode == 0, text
        left = [i for i in range(ranks) if i not in victims]
        ends = re.findall(r"end (\d+) (\[.*\]) (\d+)", text)
        assert sorted(int(rank) for rank, _, _ in ends) == left, text
        assert {who for _, who, _ in ends} == {str(left)} and len({steps for _, _, steps in ends}) == 1, text
        return text


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "kills", "seed"), [(3, 1, 0), (3, 1, 1), (5, 2, 1), (2, 1, 1), (4, 3, 1)])
def test_ranks_are_killed_and_the_others_go_on(tmp_path: Path, ranks: int, kills: int, seed: int) -> None:
    """Rank 0, too; every call that is done has the right result, and all have done as many steps."""
    rng = random.Random(100 * ranks + seed)
    disturbed(tmp_path, ranks, {i: rng.uniform(0, 0.6) for i in rng.sample(range(ranks), kills)}, signal.SIGKILL)


@pytest.mark.slow
def test_a_stopped_rank_is_lost_after_the_detectors_time(tmp_path: Path) -> None:
    disturbed(tmp_path, 3, {1: 0.3}, signal.SIGSTOP, detector=2.0)


@pytest.mark.slow
def test_a_rank_that_only_computes_is_not_lost(tmp_path: Path) -> None:
    """Three times as long as the detector waits, in numpy, Python and asleep, while another one waits, all but idle."""
    status, text = mpirun(2, script(tmp_path, """
def busy(seconds):
    end, x = time.monotonic() + seconds, np.ones((300, 300))
    while time.monotonic() < end:
        x = np.tanh(x @ x)
        sum(range(1000))

comm.barrier()
if rank == 0:
    busy(3)
    time.sleep(3)
before = time.process_time()
comm.barrier()
print("used", time.process_time() - before if rank else 0.0)
"""), detector=2.0)
    assert status == 0, text
    assert max(float(x) for x in re.findall(r"used (\S+)", text)) < 0.6, text  # a tenth of 6 s


# ---------------------------------------------------------------------------------------------- other ends


@pytest.mark.slow
def test_who_does_not_come_is_named_with_the_host(tmp_path: Path) -> None:
    status, text = mpirun(3, script(tmp_path, """
part = comm.split(0)
part.timeout = 3
if rank != 1:
    try:
        part.barrier()
    except ag.CommError as error:
        print(type(error).__name__, error, flush=True)
comm.barrier()
try:
    part.barrier()
except ag.CommError as error:
    print("then", error, flush=True)
"""))
    host = os.uname().nodename
    assert status == 0 and text.count(f"CommError barrier: rank 1 on {host} did not come within 3 s.") == 2, text
    assert text.count(f"then barrier: rank 1 on {host} did not come within 3 s.") == 3, text


@pytest.mark.slow
def test_a_rank_that_ends_early_is_named_at_once(tmp_path: Path) -> None:
    with mpi_job(2, script(tmp_path, """
if rank == 0:
    raise SystemExit("rank 0 has had enough")
begin = time.monotonic()
try:
    comm.barrier()
except ag.CommError as error:
    print(type(error).__name__, error, time.monotonic() - begin < 30, flush=True)
""")) as job:
        text = job.communicate(timeout=100)[0]
    assert "CommError barrier: rank 0 on" in text and "has come to the end of its program" in text and "True" in text


@pytest.mark.slow
def test_who_hangs_in_mpi_ends_itself(tmp_path: Path) -> None:
    """The watchdog says what was done and where, and the others lose that rank."""
    status, text = mpirun(2, script(tmp_path, """
comm.barrier()
if rank == 0:
    comm._process.inside("a long call", lambda: time.sleep(60), 1.0)
try:
    comm.barrier()
except ag.RankLostError as error:
    print(error, comm.survivors()[1], flush=True)
"""))
    assert "a long call did not end in time; this process (rank 0) ends itself by SIGKILL" in text, text
    assert "in inside" in text and re.search(r"barrier: rank 0 on \S+ was lost; .* \[1\]", text), text
    assert status == 0


@pytest.mark.slow
def test_an_interrupted_call_ends_the_group(tmp_path: Path) -> None:
    status, text = mpirun(2, script(tmp_path, """
import threading
part = comm.split(0)
if rank == 0:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        part.barrier()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
else:
    time.sleep(1)
try:
    part.barrier()
except ag.CommError as error:
    print(error, flush=True)
x = np.ones(3)
comm.all_reduce(x)
print(x.tolist())
"""))
    assert status == 0 and text.count("interrupted\n") == 1 and text.count("[2.0, 2.0, 2.0]") == 2, text
    assert text.count("the group was ended by rank 0: barrier was interrupted by KeyboardInterrupt") == 2, text


@pytest.mark.slow
def test_two_threads_and_forked_children(tmp_path: Path) -> None:
    status, text = mpirun(2, script(tmp_path, """
from threading import Thread
if rank == 0:
    waiting = Thread(target=comm.barrier)
    waiting.start()
    time.sleep(0.5)
    try:
        comm.barrier()
    except ag.CommError as error:
        print(error, flush=True)
    child = os.fork()
    if child == 0:
        try:
            comm.send(np.ones(1), 1)
        except ag.CommError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
else:
    time.sleep(1)
    comm.barrier()
"""))
    assert "another thread of rank 0 is in a call of this group" in text, text
    assert "this is a forked child of rank 0" in text and status == 0, text


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory there is")
def test_more_than_two_gibibytes(tmp_path: Path) -> None:
    """MPI counts bytes in 32 bits."""
    if os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") < 8 << 30:
        pytest.skip("less than 8 GiB of memory are free")
    status, text = mpirun(2, script(tmp_path, """
x = np.zeros((1 << 31) + 5, np.uint8)
if rank == 0:
    x[[0, 1 << 30, -1]] = 1, 2, 3
comm.broadcast(x)
print(x[[0, 1 << 30, -1]].tolist(), int(x.sum()))
"""), timeout=300, detector=60)
    assert status == 0 and text.count("[1, 2, 3] 6\n") == 2, text


@pytest.mark.slow
def test_plain_mpiexec_without_fault_tolerance(tmp_path: Path) -> None:
    """Everything works, but for going on without a rank."""
    path = script(tmp_path, """
x = np.ones(3)
comm.all_reduce(x)
print(x.tolist(), comm.commit(True), comm.commit(rank == 0), comm.split(rank).size, flush=True)
try:
    comm.survivors()
except ag.CommError as error:
    print(error)
""")
    status, text = mpirun(2, path, launcher=["-n", "2", "--oversubscribe"])
    assert status == 0 and text.count("[2.0, 2.0, 2.0] True False 1") == 2, text
    assert text.count("start it by mpiexec with --with-ft ulfm") == 2, text


# ---------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("stream", [None, io.StringIO()], ids=["missing", "no file"])
def test_who_hangs_ends_itself_without_a_stderr(stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(os, "kill", lambda *args: killed.append(args))
    MpiProcess.die(MpiProcess.__new__(MpiProcess), "a call")
    assert killed == [(os.getpid(), signal.SIGKILL)]
    assert stream is None or "a call did not end in time" in stream.getvalue()


def test_settings_are_in_one_place() -> None:
    settings = rank_environment(2.0)
    assert settings["OMPI_MCA_mpi_ft_detector"] == "1" and settings["OMPI_MCA_mpi_ft_detector_timeout"] == "2"
    assert float(settings["OMPI_MCA_mpi_ft_detector_period"]) <= 0.5
    assert settings.items() <= launcher_environment(2.0).items()
    assert mpiexec_arguments(2)[:4] == ["-n", "2", "--with-ft", "ulfm"]
    assert mpiexec_arguments(3, [("a", 2), ("b", 1)])[-2:] == ["--host", "a:2,b:1"]
    for wrong in (lambda: rank_environment(0), lambda: mpiexec_arguments(0), lambda: mpiexec_arguments(4, [("a", 2)])):
        with pytest.raises(ValueError, match=r"required\."):
            wrong()
    assert started_by_launcher({"PMI_RANK": "0"}) and not started_by_launcher({"SLURM_PROCID": "0"})


@pytest.mark.slow
def test_without_mpi4py_the_error_says_what_to_install() -> None:
    code = ("import sys; sys.modules['mpi4py'] = None\nimport ag\n"
            "try: ag.DistributedWorld.init('mpi')\nexcept ImportError as error: print(error)")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                           env={**os.environ, "OMPI_COMM_WORLD_RANK": "0"})
    assert "mpi4py cannot be loaded" in found.stdout and "pip install 'ag-autograd[mpi]'" in found.stdout, found


def test_a_time_that_is_none() -> None:
    from ag.parallel.comm.mpi import mpi_comm

    with pytest.raises(ValueError, match="mpi_comm: timeout is nan; a positive number of seconds"):
        mpi_comm(float(np.nan))
    assert ag.CommError  # the import of the communicator loads no MPI
    assert "mpi4py.MPI" not in sys.modules
