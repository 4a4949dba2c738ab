"""ag.data.imagenet: index files, also wrong ones, batches drawn from them, and top-k accuracy over any ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.properties import examples
from helpers.ranks import outcomes
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import ag
from ag.data.imagenet import class_names, minibatch, topk_accuracy, topk_hits, train_solutions, val_solutions

MAPPING = "n01 tench, Tinca tinca\nn02 goldfish\nn03 great white shark\n"
HEADER = "ImageId,PredictionString"
TRAIN = f"{HEADER}\nn02_7,n02 1 2 30 40 n02 -5 6 70.5 80 \nn01_3,n01\nn03_1,n03 0 0 1 1\nn02_9,n02\n"
COLOURS = {"n01": (255, 0, 0), "n02": (0, 255, 0), "n03": (0, 0, 255)}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Four training images and two for validation, of the colour of their class."""
    (tmp_path / "LOC_synset_mapping.txt").write_text(MAPPING)
    (tmp_path / "LOC_train_solution.csv").write_text(TRAIN)
    (tmp_path / "LOC_val_solution.csv").write_text(f"{HEADER}\nval_2,n03\nval_1,n02\n")
    images = tmp_path / "ILSVRC" / "Data" / "CLS-LOC"
    for name, synset in (("n02_7", "n02"), ("n01_3", "n01"), ("n03_1", "n03"), ("n02_9", "n02")):
        (images / "train" / synset).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 12), COLOURS[synset]).save(images / "train" / synset / f"{name}.JPEG")
    (images / "val").mkdir()
    Image.new("RGB", (9, 12), COLOURS["n03"]).save(images / "val" / "val_2.JPEG")
    Image.new("RGB", (9, 12), COLOURS["n02"]).save(images / "val" / "val_1.JPEG")
    return tmp_path


def test_the_index_names_images_and_classes(tree: Path) -> None:
    found = train_solutions(tree)
    assert found.classes == ("n01", "n02", "n03") and found.ids.tolist() == [1, 0, 2, 1] and len(found) == 4
    assert [file.name for file in found.files] == ["n02_7.JPEG", "n01_3.JPEG", "n03_1.JPEG", "n02_9.JPEG"]
    assert all(file.is_file() for file in (*found.files, *val_solutions(tree).files))
    assert val_solutions(str(tree)).ids.tolist() == [2, 1]
    assert class_names(tree) == {"n01": "tench, Tinca tinca", "n02": "goldfish", "n03": "great white shark"}


def test_classes_are_filtered_and_numbered_as_asked_for(tree: Path) -> None:
    found = train_solutions(tree, ["n03", "n02"])
    assert found.classes == ("n03", "n02") and found.ids.tolist() == [1, 0, 1]
    assert val_solutions(tree, ("n02",)).ids.tolist() == [0]
    assert train_solutions(tree, np.array(["n01"])).ids.tolist() == [0]


def test_it_is_read_by_the_loader(tree: Path) -> None:
    loader = ag.ag_image_folder(train_solutions(tree), 4, shuffle=False)
    (batch,) = loader
    assert batch.y.tolist() == [1, 0, 2, 1] and loader.classes == ["n01", "n02", "n03"]
    assert batch.x.numpy()[:, 1, 1].argmax(0).tolist() == [1, 0, 2, 1]


def test_other_ends_of_lines_and_empty_lines(tree: Path) -> None:
    expected = train_solutions(tree)
    (tree / "LOC_train_solution.csv").write_bytes(b"\xef\xbb\xbf" + TRAIN.replace("\n", "\r\n\r\n").encode())
    (tree / "LOC_synset_mapping.txt").write_bytes(MAPPING.replace("\n", "\r\n").encode())
    found = train_solutions(tree)
    assert (found.files, found.classes, found.ids.tolist()) == (expected.files, expected.classes, [1, 0, 2, 1])


WRONG = [
    ("", 1, ["header", HEADER]), ("n01_3,n01\n", 1, ["'n01_3,n01'"]),
    (f"{HEADER}\nn01_3,n01\nn02_7\n", 3, ["class is ''"]),
    (f"{HEADER}\n\nn01_3,n09\n", 3, ["'n09'", "LOC_synset_mapping.txt"]),
    (f"{HEADER}\nn01_3,n01 1 2 3\n", 2, ["'n01 1 2 3'", "four numbers"]),
    (f"{HEADER}\nn01_3,n01 1 2 3 x\n", 2, ["'n01 1 2 3 x'"]),
    (f"{HEADER}\nn01_3,n01 1 2 3 4 n02 1 2 3 4\n", 2, ["'n02 1 2 3 4'"]),
    (f"{HEADER}\n../../etc/passwd,n01\n", 2, ["'../../etc/passwd'"]), (f"{HEADER}\n,n01\n", 2, ["image is ''"]),
    (f"{HEADER}\nn01_3,n01\nn02_1,n02\nn01_3,n01\n", 4, ["n01_3", "line 2"]), (f"{HEADER}\n..,n01\n", 2, ["'..'"])]


@pytest.mark.parametrize(("text", "line", "fragments"), WRONG)
def test_a_wrong_line_is_named(tree: Path, text: str, line: int, fragments: list[str]) -> None:
    (tree / "LOC_train_solution.csv").write_text(text)
    with expect_error(f"an index of {text!r}", ValueError, "train_solutions:", f"LOC_train_solution.csv, line {line}:",
                      *fragments):
        train_solutions(tree)


@pytest.mark.parametrize(("text", "said"), [
    ("n01\n", "line 1: it is 'n01'"), ("n01 tench\nn01 tench\n", "line 2: class n01 stands there for the second time"),
    ("", "is empty"), ("n01 tench\nn/2 goldfish\n", "line 2: it is 'n/2 goldfish'")])
def test_a_wrong_mapping_is_named(tree: Path, text: str, said: str) -> None:
    (tree / "LOC_synset_mapping.txt").write_text(text)
    with expect_error(f"a mapping of {text!r}", ValueError, "val_solutions:", "LOC_synset_mapping.txt", said):
        val_solutions(tree)


def test_what_is_not_there(tree: Path) -> None:
    with expect_error("an index without an image", ValueError, "val_solutions:", "no image of the classes n01"):
        val_solutions(tree, ["n01"])
    for classes in ([], ["n09"], ["n01", "n01"], "n01", [1], {"n01"}, 3):
        with expect_error(f"train_solutions(classes={classes!r})", ValueError, "train_solutions: classes is"):
            train_solutions(tree, classes)
    (tree / "LOC_val_solution.csv").unlink()
    with expect_error("an index that is not there", FileNotFoundError, "LOC_val_solution.csv"):
        val_solutions(tree)


def test_an_image_that_is_not_there_is_named(tree: Path) -> None:
    found = train_solutions(tree)
    found.files[2].unlink()
    with expect_error("an image that is not there", ValueError, str(found.files[2])):
        ag.ag_image_folder(found, 4).next_batch()


PARTS = st.lists(st.sampled_from(["n01", "n02_7", ",", " ", "1", "-", "é", "\r", '"', "/"]), max_size=6)
LINES = st.one_of(st.sampled_from(TRAIN.splitlines()), st.text(max_size=20), PARTS.map("".join))


@examples
@given(lines=st.lists(LINES, max_size=6), header=st.booleans(), content=st.none() | st.binary(max_size=40),
       mapping=st.booleans())
def test_any_file_is_read_or_its_line_named(tree: Path, lines: list[str], header: bool, content: bytes | None,
                                            mapping: bool) -> None:
    (tree / "LOC_synset_mapping.txt").write_text(MAPPING)
    text = ("\n".join([HEADER] * (header and not mapping) + lines)).encode("utf-8", "surrogatepass")
    file = tree / ("LOC_synset_mapping.txt" if mapping else "LOC_train_solution.csv")
    file.write_bytes(text if content is None else text + content)
    try:
        found = train_solutions(tree)
    except ValueError as error:
        assert type(error) is ValueError
        assert re.match(rf"train_solutions: .*({file.name}, line \d+: |no image of the classes|{file.name} is empty"
                        r"|LOC_train_solution.csv, line \d+: )", str(error)), error
    else:
        assert len(found.files) == len(found.ids) > 0 and found.ids.max() < len(found.classes)


def test_a_minibatch_draws_each_image_once(tree: Path) -> None:
    images = train_solutions(tree)
    batch = minibatch(images, 3, 4, seed=1, normalize=None)
    assert batch.x.shape == (3, 4, 4, 3) and batch.x.numpy()[:, 1, 1].argmax(0).tolist() == batch.y.tolist()
    again = minibatch(images, 3, 4, seed=1, normalize=None)
    assert np.array_equal(batch.x.numpy(), again.x.numpy()) and batch.y.tolist() == again.y.tolist()
    assert sorted(minibatch(images, 4, 4, seed=2).y.tolist()) == [0, 1, 1, 2]
    ag.ag_seed(3)
    drawn = {tuple(minibatch(images, 4, 4).y.tolist()) for _ in range(20)}
    assert len(drawn) > 2
    white = minibatch(images, 1, 4, seed=1, shorter_side=5, random_crop=True)
    assert white.x.numpy().max() > 1  # normalised, as ImageNet's images usually are
    for n in (0, 5, 1.5):
        with expect_error(f"minibatch of {n}", ValueError, f"nsamples is {n}", "4 images"):
            minibatch(images, n, 4)


def slowly(out: np.ndarray, ids: np.ndarray, k: int) -> float:
    return float(np.mean([i in np.argsort(-column, kind="stable")[:k] for i, column in zip(ids, out.T, strict=True)]))


@examples
@given(samples=st.integers(1, 20), classes=st.integers(1, 8), ties=st.booleans(), seed=st.integers(0, 999),
       data=st.data())
def test_topk_is_the_slow_way(samples: int, classes: int, ties: bool, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    out = rng.integers(0, 3, (classes, samples)).astype(float) if ties else rng.normal(size=(classes, samples))
    ids, k = rng.integers(0, classes, samples), data.draw(st.integers(1, classes))
    assert topk_accuracy(out, ids, k) == slowly(out, ids, k)
    assert topk_hits(ag.ag_tensor(out), ids, k) == round(slowly(out.astype(np.float32), ids, k) * samples)


def test_top_1_is_argmax_and_a_dead_model_is_not_right() -> None:
    assert topk_accuracy(np.zeros((10, 100)), np.arange(100) % 10) == 0.1
    assert topk_accuracy(np.full((10, 5), np.nan), np.zeros(5, int), 10) == 0
    assert np.isnan(topk_accuracy(np.zeros((10, 0)), np.zeros(0, int)))


@pytest.mark.parametrize("sizes", [[7], [1, 6], [0, 7, 3], [5, 5, 5, 1, 0]])
def test_it_is_exact_over_ranks(sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    out, ids = rng.normal(size=(6, sum(sizes))), rng.integers(0, 6, sum(sizes))
    ends = np.cumsum(sizes)

    def part(comm: Any) -> float:
        mine = slice(ends[comm.rank] - sizes[comm.rank], ends[comm.rank])
        return topk_accuracy(out[:, mine], ids[mine], 2, comm)

    assert outcomes(len(sizes), part) == [slowly(out, ids, 2)] * len(sizes)
    world = ag.DistributedWorld.init(devices=["cpu"])
    assert topk_accuracy(out, ids, 2, world) == slowly(out, ids, 2)
    wrong: Any = "mpi"
    with expect_error("topk_accuracy(world='mpi')", TypeError, "topk_accuracy: world is 'mpi'", "a communicator"):
        topk_accuracy(out, ids, 2, wrong)


@pytest.mark.parametrize(("out", "ids", "k", "error", "fragments"), [
    (np.zeros((3, 2)), [0, 1], 4, ValueError, ["k is 4", "3 classes"]),
    (np.zeros((3, 2)), [0, 1], 0, ValueError, ["k is 0"]), (np.zeros((3, 2)), [0, 1], 1.0, ValueError, ["k is 1.0"]),
    (np.zeros((3, 2)), [0], 1, ag.ShapeError, ["(3, 2)", "(1,)"]), (np.zeros(3), [0], 1, ag.ShapeError, ["(3,)"]),
    (np.zeros((3, 2)), [0, 3], 1, IndexError, ["class 3", "0..2"]),
    (np.zeros((3, 2)), [0, -1], 1, IndexError, ["class -1"]),
    (np.zeros((3, 2)), [0, 0.5], 1, ag.DtypeError, ["float64", "whole numbers"]),
    (np.zeros((3, 2)), ["a", "b"], 1, ag.DtypeError, ["<U1"])])
def test_what_topk_refuses(out: Any, ids: Any, k: Any, error: type[BaseException], fragments: list[str]) -> None:
    for function in (topk_accuracy, topk_hits):
        with expect_error(f"{function.__name__}({ids}, {k})", error, f"{function.__name__}:", *fragments):
            function(out, ids, k)
