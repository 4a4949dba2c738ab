"""docs/interop.md is true: its blocks run, both libraries compute the same from the same file, and its table fits.

Without PyTorch, what its blocks leave comes from tests/docs/interop.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from helpers.pages import ROOT
from nn.resnet import weights

import ag

PAGE = (ROOT / "docs" / "interop.md").read_text("utf-8")
SECTIONS = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
KEPT = Path(__file__).parent / "interop"


def blocks(text: str) -> list[tuple[str, str]]:
    """(library, code) of each block, in order."""
    return [("torch" if kind == "py torch" else "ag", code)
            for kind, code in re.findall(r"^```(python|py torch)\n(.*?)^```$", text, re.M | re.S)]


def result_of(name: str) -> Path:
    return KEPT / name.replace("torch", "result")


def written_by(code: str) -> list[str]:
    return re.findall(r'save_file\(.*, "(.*?)"\)', code)


def run_page(with_torch: bool) -> dict[str, dict[str, Any]]:
    """Run every block in the current folder, one program of each library; what each section left in `result`."""
    names: dict[str, dict[str, Any]] = {"ag": {}, "torch": {}}
    left: dict[str, dict[str, Any]] = {}
    for title, text in SECTIONS:
        for library, code in blocks(text) if title != RESNET else ():
            if library == "torch" and not with_torch:
                take_kept(title, code, names["torch"])
            else:
                exec(code, names[library])  # a block of our own documentation
        if blocks(text) and title != RESNET:
            left[title] = {library: names[library].pop("result", None) for library in names}
    return left


def take_kept(title: str, code: str, names: dict[str, Any]) -> None:
    """Do what a block of PyTorch did once: leave its files and its result."""
    for name in written_by(code):
        shutil.copy(KEPT / name, name)
        names["result"] = safetensors.numpy.load_file(result_of(name))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(left: dict[str, dict[str, Any]], titles: list[str]) -> None:
    for title in titles:
        ours, theirs = left[title]["ag"], left[title]["torch"]
        assert ours.keys() == theirs.keys(), title
        for name, value in ours.items():
            assert value.shape == theirs[name].shape and value.std() > 0.01
            np.testing.assert_allclose(value, theirs[name], rtol=1e-5, atol=1e-6, err_msg=f"{title}: {name}")


RESNET = "torchvision's ResNets"  # whose file the tests write themselves: it would be 46 MB
BY_MAP = "Weights by a map of names"  # has a block of ours alone, with a file of a section before it
TITLES = [title for title, text in SECTIONS if blocks(text) and title not in (RESNET, BY_MAP)]
INTO_AG = [title for title in TITLES if title.endswith("to here")]


def test_every_block_of_the_page_belongs_to_a_pair() -> None:
    assert len(TITLES) == 6 and len(INTO_AG) == 3
    assert sum(len(blocks(text)) for _, text in SECTIONS) == PAGE.count("```") / 2 - 2 == 16  # torchvision's, ONNX's
    assert all({library for library, _ in blocks(text)} in (set(), {"ag", "torch"}) for title, text in SECTIONS
               if title not in (RESNET, BY_MAP))


def test_the_block_of_onnx(folder: Path) -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed, so nothing was exported")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed, so no graph was run")
    (code,) = re.findall(r"^```py onnx\n(.*?)^```$", PAGE, re.M | re.S)
    model = ag.ag_sequential(ag.ag_conv2d_layer(1, 2, 3), ag.ag_flatten_layer(), ag.ag_linear(2 * 6 * 6, 3))
    images = np.random.default_rng(1).normal(size=(1, 8, 8, 5)).astype("f")
    exec(code, {"ag": ag, "np": np, "model": model, "images": images})  # a block of our own documentation


def test_the_blocks_with_what_pytorch_wrote(folder: Path) -> None:
    check(run_page(with_torch=False), INTO_AG)


def test_the_blocks_with_pytorch(folder: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed, so what its blocks once wrote was used")
    check(run_page(with_torch=True), TITLES)


@pytest.mark.slow
def test_the_blocks_of_the_resnets(folder: Path) -> None:
    found = np.load(ROOT / "tests" / "nn" / "resnet" / "torchvision.npz")
    names = json.loads(found["names18"].tobytes())
    theirs = {**weights.state(names["shapes"]), **{name: np.array(3) for name in names["counted"]}}
    safetensors.numpy.save_file(theirs, "resnet18.safetensors")
    ((_, code),) = blocks(dict(SECTIONS)[RESNET])
    left: dict[str, Any] = {"ag": ag}
    exec(code, left)  # a block of our own documentation
    for model in (ag.ag_eval(left["model"]), ag.ag_load_model("resnet18_ag.safetensors")):
        logits = model(weights.images().transpose(1, 2, 3, 0).copy()).numpy().T[:, ::10]
        assert np.abs(logits - found["logits18"]).max() <= 1e-4 * np.abs(found["logits18"]).max()


SIZES = {"i": 3, "o": 4, "h": 2, "w": 5, "c": 6, "v": 7, "d": 8, "n": 2}
ROWS = re.findall(r"^\| `(ag_\w+\(.*?\))` \| (.*?) \| `(\w+\(.*?\))` \| (.*?) \|", PAGE, re.M)


def shapes(cell: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(eval(f"[{sizes}]", dict(SIZES))) for name, sizes in re.findall(r"`([\w.]+) \[(.*?)\]`", cell)}


def test_the_table_has_every_layer_with_tensors() -> None:
    layers = {name for name in ag.__all__ if name != "Layer" and isinstance(getattr(ag, name), type)
              and issubclass(getattr(ag, name), ag.Layer)
              and not getattr(ag, name).__module__.startswith("ag.parallel")}  # made of the others, or of their parts
    without = {"ag_sequential", "ag_residual", "ag_dropout", "ag_max_pool", "ag_avg_pool", "ag_global_pool",
               "ag_flatten_layer", "ag_resnet"}
    assert layers - without == {row[0].partition("(")[0] for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_tensors_of_our_layers(row: tuple[str, ...], folder: Path) -> None:
    layer = eval(f"ag.{row[0]}", {"ag": ag, **SIZES})
    assert {name: x.shape for name, x in layer.state_dict().items()} == shapes(row[1])
    ag.ag_save_model(layer, "layer.safetensors")
    arrays = safetensors.numpy.load_file("layer.safetensors")
    assert {name: x.shape for name, x in arrays.items()} == shapes(row[1])
    assert all(np.array_equal(x, layer.state_dict()[name]) for name, x in arrays.items())


@pytest.mark.parametrize("row", ROWS, ids=[row[2] for row in ROWS])
def test_tensors_of_their_modules(row: tuple[str, ...]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed, so its column of the table was not checked")
    module = eval(f"nn.{row[2]}", {"nn": torch.nn, **SIZES})
    assert {name: tuple(x.shape) for name, x in module.state_dict().items()} == shapes(row[3])
