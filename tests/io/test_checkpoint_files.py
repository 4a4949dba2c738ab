"""Files of checkpoints: broken or forged ones are a CheckpointError."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from helpers.errors import expect_error
from helpers.training_run import Run

import ag

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.safetensors"


def test_files_of_another_kind(path: Path) -> None:
    model = ag.ag_linear(2, 2)
    with expect_error("loading a checkpoint that is not there", ag.CheckpointError, "cannot be read"):
        ag.ag_load_checkpoint(path, model)
    ag.ag_save_model(model, path)
    with expect_error("loading a model file as a checkpoint", ag.CheckpointError, "'ag-model-1'", "'ag-checkpoint-1'"):
        ag.ag_load_checkpoint(path, model)


def assert_refused(path: Path, forge: Callable[[dict[str, str], dict[str, np.ndarray]], None], *fragments: str) -> None:
    """Change a checkpoint's header and arrays, and see that loading it changes nothing."""
    run = Run()
    run.train(3)
    ag.ag_save_checkpoint(path, **run.parts())
    with safetensors.safe_open(path, framework="numpy") as file:
        header = file.metadata()
    arrays = safetensors.numpy.load_file(path)
    forge(header, arrays)
    path.write_bytes(safetensors.numpy.save(arrays, header))
    run.train(2)
    before = run.everything()
    with expect_error("loading a forged checkpoint", ag.CheckpointError, *fragments):
        ag.ag_load_checkpoint(path, **run.parts())
    assert run.everything() == before


@pytest.mark.parametrize(("name", "text"), [
    ("step", None), ("step", "1.5e"), ("step", '"x"'), ("step", "9" * 5000), ("extra", None), ("extra", "[" * 100_000),
    ("generator", None), ("generator", "3"), ("generator", '{"seed": -1, "host_streams": 0, "streams": {}}'),
    ("generator", '{"seed": 1, "host_streams": 0, "streams": [1]}'),
    ("generator", '{"seed": 1, "host_streams": 1e3, "streams": {}}'),
    ("lr", None), ("lr", "NaN"), ("lr", "-0.1"), ("lr", '"0.1"'),
    ("scheduler", None), ("scheduler", "null"), ("scheduler", "[]"), ("scheduler", '{"steps": 1}'),
    ("dataloader", "7"), ("dataloader", '{"seed": 1, "epoch": -1, "next": 0, "samples": 12, "batch_size": 3}'),
    ("dataloader", '{"seed": 1, "epoch": 0, "next": 5, "samples": 12, "batch_size": 3}'),
    ("dataloader", '{"seed": "1", "epoch": 0, "next": 0, "samples": 12, "batch_size": 3}'),
])
def test_a_forged_header(path: Path, name: str, text: str | None) -> None:
    def forge(header: dict[str, str], arrays: dict[str, np.ndarray]) -> None:
        header.pop(name)
        header |= {} if text is None else {name: text}

    assert_refused(path, forge, "run.safetensors")


@pytest.mark.parametrize("names", [("lr", "scheduler"), ("lr", "dataloader"), ("scheduler", "dataloader")])
def test_the_rate_keeps_its_digits_when_several_parts_are_not_there(path: Path, names: tuple[str, ...]) -> None:
    """The rate was put back from the optimizer's state, which has the digits of a float32."""
    def forge(header: dict[str, str], arrays: dict[str, np.ndarray]) -> None:
        for name in names:
            del header[name]

    assert_refused(path, forge, *(f"{name}: the file holds no state of it" for name in names))


@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("place", range(4))  # learning rate, bias corrections, steps
def test_a_forged_optimizer_state(path: Path, place: int, number: float) -> None:
    """Some of these loaded, and the step after failed with a mathematical error."""
    def forge(header: dict[str, str], arrays: dict[str, np.ndarray]) -> None:
        arrays["optimizer.state"][place] = number

    assert_refused(path, forge, "optimizer: state holds")


@pytest.mark.parametrize("part", ["optimizer", "scheduler", "dataloader"])
def test_parts_without_a_state_are_named(tmp_path: Path, part: str) -> None:
    model, path = ag.ag_linear(2, 2), tmp_path / "c"
    ag.ag_save_checkpoint(path, model)
    for function in (ag.ag_save_checkpoint, ag.ag_load_checkpoint):
        with pytest.raises(TypeError, match=f"{function.__name__}: {part} is a list; .* is required, or None"):
            function(path, model, **{part: []})


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    for name in ("a\0b", "\ud800" if sys.platform != "win32" else "a\0"):
        with pytest.raises(OSError, match="Not the name of a file"):
            ag.ag_save_model(ag.ag_linear(2, 2), os.path.join(tmp_path, name))


SAVING = """
import os, random, signal, sys, time
import numpy as np
import ag

path, kills = sys.argv[1], int(sys.argv[2])
model = ag.ag_linear(64, 64)
optimizer = ag.optimizer_adam(model)
moments = optimizer.state_dict()

def saved(step):
    optimizer.load_state_dict({name: np.full_like(array, step) if name != "settings" else array
                               for name, array in moments.items()})
    model.load_state_dict({name: np.full_like(array, step) for name, array in model.state_dict().items()})
    ag.ag_save_checkpoint(path, model, optimizer, step=step, extra=step)

saved(0)
rng = random.Random(0)
step, seen, slow = 0, set(), 1.0  # slow: where others use the machine, a save takes longer
for _ in range(kills):
    child = os.fork()
    if child == 0:
        while True:
            step += 1
            saved(step)
    time.sleep(rng.uniform(0, 0.02) * slow)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = ag.ag_load_checkpoint(path, model, optimizer)
    assert found.extra == found.step >= step, (found, step)
    state = {name: x for name, x in optimizer.state_dict().items() if name != "settings"}
    for array in (*model.state_dict().values(), *state.values()):
        assert (array == found.step).all(), found
    slow = max(1.0, slow * (1.1 if found.step == step else 0.9))
    step = found.step
    seen.add(step)
print(len(seen))
"""


@pytest.mark.slow  # a hundred processes; test_replacing has the order of a save's steps
def test_killed_while_saving_the_latest_file_loads(path: Path) -> None:
    # One process forks its victims: they need not import anything, so a kill takes milliseconds.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SAVING, str(path), "100"], env=env, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20  # most kills came after a save, and some of them in one
    left = [name for name in os.listdir(path.parent) if name != path.name]
    assert left and all(name.startswith(f".{path.name}.") for name in left)
    for name in left:
        os.utime(path.parent / name, (0, 0))  # long ago
    ag.ag_save_checkpoint(path, ag.ag_linear(64, 64))
    assert os.listdir(path.parent) == [path.name]
