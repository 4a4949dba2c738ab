"""Thousands of broken and forged files of each kind: a CheckpointError or a load that works, nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from helpers.mutations import mutations, split
from helpers.training_run import Run

import ag

COUNTS = pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
HERE = Path(__file__).parent
LONGEST = 3_000  # characters of a message, whatever is in the file


def images() -> ag.Layer:
    return ag.ag_sequential(ag.ag_residual(ag.ag_conv2d_layer(2, 2, 3, padding=1), activation="relu"),
                            ag.ag_batch_norm(2), ag.ag_max_pool(2), ag.ag_flatten_layer(), ag.ag_dropout(0.1),
                            ag.ag_linear(8, 3))


def words() -> ag.Layer:
    return ag.ag_sequential(ag.ag_embedding(7, 4), ag.ag_layer_norm(4), ag.ag_rms_norm(4),
                            ag.ag_multihead_attention(4, 2),
                            ag.ag_sequential(ag.ag_linear(4, 3, activation="softmax")))


def halves() -> ag.Layer:
    previous = ag.ag_dtype("bf16")
    model = ag.ag_sequential(ag.ag_embedding(7, 4), ag.ag_batch_norm(4), ag.ag_linear(4, 3))
    ag.ag_dtype(previous)
    return model


INPUTS = [np.ones((2, 4, 4, 5), np.float32), np.arange(5)]


def content_of(model: Any, path: Path) -> bytes:
    ag.ag_save_model(model, path)
    return path.read_bytes()


def load_broken_models(path: Path, count: int) -> Counter[str]:
    """Load that many broken model files; what became of them."""
    seen: Counter[str] = Counter()
    for content in mutations([content_of(model(), path) for model in (images, words, halves)], count):
        path.write_bytes(content)
        try:
            model = ag.ag_load_model(path)
        except ag.CheckpointError as error:
            assert path.name in str(error) and len(str(error)) < LONGEST
            seen["refused"] += 1
        else:
            assert not model.training
            as_the_file_says(model, content)
            seen["loaded"] += 1
            seen["run"] += any(runs(model, x) for x in INPUTS)
    return seen


def as_the_file_says(model: ag.Layer, content: bytes) -> None:
    said = json.loads(json.loads(split(content)[0])["__metadata__"]["model"])
    assert json.loads(json.dumps(model.config())) == said
    arrays, state = arrays_of(content), model.state_dict()
    assert arrays.keys() == state.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array.astype(np.float32), state[name], err_msg=name)


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
    """What safetensors reads; and bfloat16, which it cannot give to numpy, as the upper halves of float32 numbers."""
    size = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:size])
    if not any(entry.get("dtype") == "BF16" for entry in entries.values()):
        return safetensors.numpy.load(content)
    arrays = {}
    for name, entry in entries.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            kind = {"BF16": "<u2", "F32": "<f4", "F16": "<f2", "I32": "<i4", "U32": "<u4"}[entry["dtype"]]
            array = np.frombuffer(content[size + begin : size + end], kind).reshape(entry["shape"])
            arrays[name] = (array.astype("<u4") << 16).view("<f4") if entry["dtype"] == "BF16" else array
    return arrays


def runs(model: ag.Layer, x: np.ndarray) -> bool:
    """Whether the model works on such an input; a forged one may have layers that do not go together."""
    try:
        return model(x).numpy().shape[-1] == 5
    except (ag.ShapeError, ag.DtypeError):
        return False


def load_broken_checkpoints(path: Path, count: int) -> Counter[str]:
    """Load that many broken checkpoints into one run, which goes on wherever that works; what became of them."""
    run, files = Run(), []
    for steps in (2, 4, 5):
        run.train(steps)
        ag.ag_save_checkpoint(path, **run.parts(), step=steps, extra={"best": [0.5, None]})
        files.append(path.read_bytes())
    files.append(content_of(run.model, path))
    seen: Counter[str] = Counter()
    before = run.everything()
    for content in mutations(files, count):
        path.write_bytes(content)
        try:
            found = ag.ag_load_checkpoint(path, **run.parts())
        except ag.CheckpointError as error:
            assert path.name in str(error)
            assert run.everything() == before, f"changed by a file that was refused: {error}"
            seen["refused"] += 1
        else:
            assert type(found.step) is int
            run.train(1)
            before = run.everything()
            seen["loaded"] += 1
    path.write_bytes(files[0])
    assert ag.ag_load_checkpoint(path, **run.parts()).step == 2
    return seen


@pytest.fixture
def path() -> Iterator[Path]:
    memory = "/dev/shm"  # if there is one: files by the thousand need not go to a disk
    with TemporaryDirectory(dir=memory if os.path.isdir(memory) else None) as folder:
        yield Path(folder) / "broken.safetensors"


@COUNTS
def test_broken_model_files(path: Path, count: int) -> None:
    with np.errstate(all="ignore"):  # weights may be anything
        seen = load_broken_models(path, count)
    assert seen["refused"] + seen["loaded"] == count
    assert seen["loaded"] > count / 50 and seen["refused"] > count / 2, seen
    assert seen["run"] > 0.9 * seen["loaded"], seen


@COUNTS
def test_broken_checkpoints(path: Path, count: int) -> None:
    with np.errstate(all="ignore"):
        seen = load_broken_checkpoints(path, count)
    assert seen["refused"] + seen["loaded"] == count
    assert seen["loaded"] > count / 50 and seen["refused"] > count / 2, seen


# ---------------------------------------------------------------------------------------------- nothing is run

WATCHED = """
import sys
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
import numpy as np
import test_fuzzed_files as files
from ag import ag_load_checkpoint, ag_load_model

path = Path(sys.argv[1])
loading, events = False, []

def note(event, arguments):
    if event == "open" and arguments[:2] == (str(path), "r"):
        return  # the file that is to be read
    if loading and not event.startswith(("object.", "builtins.id", "sys._getframe")):
        events.append((event, str(arguments)[:200]))

def watched(load):
    def wrapped(*args, **kwargs):
        global loading
        loading = True
        try:
            return load(*args, **kwargs)
        finally:
            loading = False
    return wrapped

np.seterr(all="ignore")
sys.addaudithook(note)
files.content_of(files.images(), path)
watched(__import__)("colorsys")
assert {"import", "exec"} <= {event for event, _ in events}, events  # so it would be seen
ag_load_model(path)  # what is imported late is there now
events.clear()

files.ag.ag_load_model, files.ag.ag_load_checkpoint = watched(ag_load_model), watched(ag_load_checkpoint)
before = getrusage(RUSAGE_SELF).ru_maxrss
seen = files.load_broken_models(path, 2500) + files.load_broken_checkpoints(path, 2500)
print(seen, getrusage(RUSAGE_SELF).ru_maxrss - before, "KiB")
assert not events, events[:10]
assert getrusage(RUSAGE_SELF).ru_maxrss - before < 50_000
"""


def test_nothing_in_a_file_is_run(path: Path) -> None:
    """After Python's audit events: no import, no code, no unpickling, no process, no other file; and little memory."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", WATCHED, str(path)], cwd=HERE, capture_output=True,
                          env={**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE.parent}"}, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
