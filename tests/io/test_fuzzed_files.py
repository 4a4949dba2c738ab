"""Damaged and forged files of every format that is read: the promised error, or a reading that is valid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from helpers.fuzz import mutations
from helpers.training_run import Run

import ag

COUNTS = pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.slow)])
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
MODELS = {model.__name__: model for model in (images, words, halves)}


@pytest.fixture
def path(in_memory: Path) -> Path:
    return in_memory / "broken.safetensors"


def content_of(model: Any, path: Path) -> bytes:
    """Return a model file whose header is in one order, whichever the writer chose."""
    ag.ag_save_model(model, path)
    return ordered(path.read_bytes())


def ordered(content: bytes) -> bytes:
    size = int.from_bytes(content[:8], "little")
    said = json.loads(content[8 : 8 + size])
    metadata = {"__metadata__": dict(sorted(said.pop("__metadata__").items()))}
    header = json.dumps({**metadata, **dict(sorted(said.items()))}).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def read_all(path: Path, content: bytes, count: int, read: Callable[[bytes], None]) -> Counter[str]:
    """Read that many damaged variants of a file by a function, and count what became of them."""
    seen: Counter[str] = Counter()
    with np.errstate(all="ignore"):  # weights may be anything
        for variant in mutations(content, count, seed=len(content)):
            path.write_bytes(variant)
            try:
                read(variant)
            except ag.CheckpointError as error:
                assert path.name in str(error) and len(str(error)) < LONGEST
                seen["refused"] += 1
            else:
                seen["loaded"] += 1
    assert seen["loaded"] > count / 50 and seen["refused"] > count / 4, seen
    return seen


def model_reader(path: Path) -> Callable[[bytes], None]:
    """Return a reader of model files that compares the model with what the file says."""
    def read(content: bytes) -> None:
        model = ag.ag_load_model(path)
        assert not model.training
        size = 8 + int.from_bytes(content[:8], "little")
        said = json.loads(json.loads(content[8:size])["__metadata__"]["model"])
        assert json.loads(json.dumps(model.config())) == said
        arrays, state = arrays_of(content), model.state_dict()
        assert arrays.keys() == state.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array.astype(np.float32), state[name], err_msg=name)
        runs = [works(model, x) for x in INPUTS]
        assert len(runs) == 2

    return read


def arrays_of(content: bytes) -> dict[str, np.ndarray]:
    """Return what safetensors reads; bfloat16, which numpy has not, as the upper halves of float32 numbers."""
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


def works(model: ag.Layer, x: np.ndarray) -> bool:
    """Return whether the model takes such an input; a forged one may have layers that do not go together."""
    try:
        return model(x).numpy().shape[-1] == 5
    except (ag.ShapeError, ag.DtypeError):
        return False


@COUNTS
@pytest.mark.parametrize("name", MODELS)
def test_broken_model_files(path: Path, name: str, count: int) -> None:
    read_all(path, content_of(MODELS[name](), path), count, model_reader(path))


@COUNTS
def test_weights_of_broken_files(path: Path, count: int) -> None:
    model = ag.ag_sequential(ag.ag_linear(4, 3), ag.ag_linear(3, 2))
    names = {"first.weight": "layer1_W", "first.bias": "layer1_b",
             "second.weight": "layer2_W", "second.bias": "layer2_b"}
    theirs = {name: np.ascontiguousarray(model.state_dict()[mine]) for name, mine in names.items()}
    content = ordered(safetensors.numpy.save(theirs, {"format": "pt"}))

    def read(variant: bytes) -> None:
        before = {name: x.tobytes() for name, x in model.state_dict().items()}
        try:
            ag.load_weights(model, path, names)
        except ag.CheckpointError:
            assert {name: x.tobytes() for name, x in model.state_dict().items()} == before
            raise

    read_all(path, content, count, read)


def checkpoint_reader(path: Path, run: Run) -> Callable[[bytes], None]:
    """Return a reader of checkpoints into a run, which goes on wherever that works."""
    def read(content: bytes) -> None:
        before = run.everything()
        try:
            found = ag.ag_load_checkpoint(path, **run.parts())
        except ag.CheckpointError as error:
            assert run.everything() == before, f"changed by a file that was refused: {error}"
            raise
        assert type(found.step) is int
        run.train(1)

    return read


def checkpoint_of(run: Run, path: Path) -> bytes:
    ag.ag_save_checkpoint(path, **run.parts(), step=3, extra={"best": [0.5, None]})
    return ordered(path.read_bytes())


@pytest.mark.parametrize("count", [150, pytest.param(5_000, marks=pytest.mark.slow)])  # each takes a step of training
def test_broken_checkpoints(path: Path, count: int) -> None:
    run = Run()
    run.train(3)
    content = checkpoint_of(run, path)
    read_all(path, content, count, checkpoint_reader(path, run))
    path.write_bytes(content)
    assert ag.ag_load_checkpoint(path, **run.parts()).step == 3


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
    if event == "open" and arguments[0] == str(path) and arguments[1] in ("r", None):
        return  # the file that is to be read
    if loading and not event.startswith(("object.", "builtins.id", "sys._getframe", "gc.get_referents")):
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
content, run = files.content_of(files.images(), path), files.Run()
watched(__import__)("colorsys")
assert {"import", "exec"} <= {event for event, _ in events}, events  # so it would be seen
ag_load_model(path)  # what is imported late is there now
events.clear()

files.ag.ag_load_model, files.ag.ag_load_checkpoint = watched(ag_load_model), watched(ag_load_checkpoint)
before = getrusage(RUSAGE_SELF).ru_maxrss
seen = files.read_all(path, content, 1000, files.model_reader(path))
seen += files.read_all(path, files.checkpoint_of(run, path), 1000, files.checkpoint_reader(path, run))
print(seen, getrusage(RUSAGE_SELF).ru_maxrss - before, "KiB")
assert not events, events[:10]
assert getrusage(RUSAGE_SELF).ru_maxrss - before < 50_000
"""


@pytest.mark.slow  # starts a process; changes with ag/io alone
def test_nothing_in_a_file_is_run(path: Path) -> None:
    """After Python's audit events: no import, no code, no unpickling, no process, no other file; and little memory."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", WATCHED, str(path)], cwd=HERE, capture_output=True,
                          env={**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE.parent}"}, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
