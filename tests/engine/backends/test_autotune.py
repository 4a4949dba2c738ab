"""AG_TUNE=1: the quickest tiles are measured once per class of products, kept in a file, and used from then on."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from helpers.tiled import blank, normal, on

import ag
from ag.engine.backends.vulkan.plans import Product
from ag.engine.backends.vulkan.products import autotune as tune
from ag.engine.backends.vulkan.products.autotune import Tune, class_of
from ag.engine.backends.vulkan.products.autotune_cache import Choices, choices_of
from ag.engine.backends.vulkan.products.tiles import TILES, Tiles
from ag.engine.compile.pipeline import record
from ag.engine.device import backend_of
from ag.engine.kernels.conv import conv2d, conv2d_weight_grad
from ag.engine.kernels.matmul import batched_matmul, matmul
from ag.engine.window import Window

CLASS = "16x32 32x16 nn 1"
pytestmark = pytest.mark.vulkan


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory's folder of ag, which is not there yet; this process has measured nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    choices_of.cache_clear()
    return tmp_path / "ag"


@pytest.fixture
def opened(folder: Path, swiftshader: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Opens backends as processes of their own would, with AG_TUNE set."""
    from ag.engine.backends.vulkan.backend import VulkanBackend

    backends = []
    monkeypatch.setattr(tune, "TILES", {kind: TILES[kind] for kind in ("S", "V")})  # others take time to compile
    monkeypatch.setattr(tune, "_MOST_SECONDS", 60.0)
    monkeypatch.setenv("AG_TUNE", "1")

    def open_one() -> Any:
        choices_of.cache_clear()
        backends.append(VulkanBackend(int(swiftshader.split(":")[1]), guard=256))
        return backends[-1]

    yield open_one
    for backend in backends:
        backend.synchronize()
        backend.check_guards()
    choices_of.cache_clear()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The workgroups of every command that is timed; of all, that with most is the quickest."""
    grids: list[int] = []

    def seconds(recorder: Any, command: Any) -> float:
        assert tune._timed(recorder, recorder.build([command])) > 0
        grids.append(command.grid[0] * command.grid[1] * command.grid[2])
        return 1.0 / grids[-1]

    monkeypatch.setattr(tune, "seconds_of", seconds)
    monkeypatch.setattr(tune, "_WARM_SECONDS", 0.0)
    return grids


def test_a_card_is_warm_before_it_is_timed(lavapipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its clock rises with work, the first of several kinds would be found slow."""
    backend: Any = backend_of(lavapipe)
    played = []
    usual = tune._timed
    monkeypatch.setattr(tune, "_timed", lambda recorder, sequence: played.append(usual(recorder, sequence)))
    a, out = on(backend, np.ones((4, 4))), blank(backend, (4, 4))
    begin = perf_counter()
    tune.warm_up(backend.recorder, backend.command(matmul, (out, a, a), {"ta": False, "tb": False}))
    assert perf_counter() - begin >= tune._WARM_SECONDS and len(played) > 3
    tune.warm_up(backend.recorder, None)
    assert np.array_equal(backend.download(out), np.full((4, 4), 4.0))


def product(backend: Any, rows: int = 13, inner: int = 30, cols: int = 16) -> None:
    """A product, checked."""
    rng = np.random.default_rng(1)
    a, b = normal(rng, rows, inner), normal(rng, inner, cols)
    out = backend.launch(matmul, on(backend, a), on(backend, b), into=blank(backend, (rows, cols)), ta=False, tb=False)
    np.testing.assert_allclose(backend.download(out), a @ b, rtol=1e-4, atol=1e-4)


def kept(folder: Path) -> dict[str, str]:
    (file,) = folder.glob("*.json")  # compiled kernels are kept there, too
    choices: dict[str, str] = json.loads(file.read_text())["choices"]
    return choices


def test_a_choice_is_kept_and_no_other_process_measures(
    opened: Callable[[], Any], folder: Path, timed: list[int]
) -> None:
    first = opened()
    product(first)
    assert len(timed) == 3  # two kinds, and that of software devices
    assert kept(folder) == {CLASS: "V"}
    product(first)
    product(first, 16, 20, 9)  # another of the class
    product(opened())
    assert len(timed) == 3
    product(opened(), 17, 30, 16)
    assert len(timed) == 6 and list(kept(folder)) == [CLASS, "32x32 32x16 nn 1"]


def test_what_was_chosen_is_used(opened: Callable[[], Any], folder: Path, timed: list[int]) -> None:
    product(opened(), 40, 8, 40)
    (file,) = folder.glob("*.json")  # compiled kernels are kept there, too
    grids = {}
    for kind in ("fixed", "V", "S"):
        file.write_text(file.read_text().replace('"V"', f'"{kind}"').replace('"fixed"', f'"{kind}"'))
        backend = opened()
        buffers = tuple(blank(backend, shape) for shape in ((40, 40), (40, 8), (8, 40)))
        grids[kind] = backend.command(matmul, buffers, {"ta": False, "tb": False}).grid
    assert grids == {"fixed": (2, 2, 1), "V": (5, 2, 1), "S": (2, 2, 1)}


def test_the_real_stopwatch_chooses_some_kind(opened: Callable[[], Any], folder: Path) -> None:
    backend = opened()
    product(backend)
    (choice,) = kept(folder).values()
    assert choice in backend._tune._rules


@pytest.mark.parametrize(("content", "message"), [
    ("{", "cannot be read"), ("driver", "was made for another driver"), ("kernels", "was made for another kernels"),
    *(pytest.param(content, message, marks=pytest.mark.slow) for content, message in (
        ("[1]", "is no file of choices"), ('{"choices": 1}', "is no file of choices"),
        ('{"choices": {"a": "S"}}', "was made for another format"), ("device", "was made for another device"),
        ("choices", "holds a choice that is no word"))),
])
def test_a_broken_or_foreign_file_is_named_once_and_replaced(
    opened: Callable[[], Any], folder: Path, timed: list[int], caplog: pytest.LogCaptureFixture, content: str,
    message: str
) -> None:
    product(opened())
    (file,) = folder.glob("*.json")  # compiled kernels are kept there, too
    before = file.read_text()
    other = {**json.loads(before), content: {"a": 1} if content == "choices" else "another"}
    file.write_text(json.dumps(other) if content.isalpha() else content)
    backend = opened()
    product(backend)
    product(backend)
    assert len(timed) == 6 and file.read_text() == before
    assert [message in record.message for record in caplog.records] == [True]
    assert str(file) in caplog.text


def test_a_choice_that_this_device_cannot_run_is_made_again(
    opened: Callable[[], Any], folder: Path, timed: list[int]
) -> None:
    product(opened())
    (file,) = folder.glob("*.json")  # compiled kernels are kept there, too
    file.write_text(file.read_text().replace('"V"', '"XXL"'))
    product(opened())
    assert len(timed) == 6 and kept(folder) == {CLASS: "V"}


def test_what_another_process_chose_meanwhile_holds(folder: Path) -> None:
    one, two = (Choices(folder / "device.json", "device", "1", "hash") for _ in range(2))
    assert one.keep("a", "L", {"L", "M", "S"}) == "L" and two.keep("b", "M", {"L", "M", "S"}) == "M"
    assert two.keep("a", "S", {"L", "M", "S"}) == two.get("a") == "L"
    assert two.keep("a", "S", {"M", "S"}) == "S" and two.keep("a", "L", {"L", "M", "S"}) == "S"
    assert json.loads((folder / "device.json").read_text())["choices"] == {"a": "S", "b": "M"}
    assert [path.name for path in folder.iterdir()] == ["device.json"]


def test_a_folder_that_cannot_be_written_costs_the_file_only(
    opened: Callable[[], Any], folder: Path, timed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("not a folder")
    backend = opened()
    caplog.clear()
    product(backend)
    product(backend)
    assert len(timed) == 3 and "cannot be written" in caplog.text


@pytest.mark.parametrize("where", ["the arena", "the command stream"])
def test_no_room_to_measure(
    opened: Callable[[], Any], folder: Path, timed: list[int], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, where: str,
) -> None:
    backend = opened()
    buffers = tuple(blank(backend, shape) for shape in ((40, 40), (40, 8), (8, 40)))

    def full(*_: Any) -> None:
        raise ag.ArenaError(f"{where} is full")

    with monkeypatch.context() as patch:
        patch.setattr(*(backend, "alloc") if where == "the arena" else (backend.recorder, "build"), full)
        assert backend.command(matmul, buffers, {"ta": False, "tb": False}).grid == (2, 2, 1)
    assert not timed and not list(folder.glob("*.json")) and f"for want of memory ({where} is full)" in caplog.text


def test_nothing_is_read_or_written_unless_asked(
    folder: Path, opened: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AG_TUNE")
    product(opened())
    assert not folder.exists()
    monkeypatch.setenv("AG_TUNE", "1")
    monkeypatch.setenv("AG_MATMUL_TILE", "M")  # which says it already
    product(opened())
    assert not folder.exists()


def test_products_and_convolutions_have_classes(
    opened: Callable[[], Any], folder: Path, timed: list[int]
) -> None:
    backend, rng = opened(), np.random.default_rng(2)
    a, b = on(backend, normal(rng, 3, 5, 9)), on(backend, normal(rng, 3, 5, 7))
    got = backend.download(backend.launch(batched_matmul, a, b, ta=True, tb=False, chunk=64))
    np.testing.assert_allclose(got[0], np.swapaxes(backend.download(a), 1, 2) @ backend.download(b), rtol=1e-4,
                               atol=1e-5)
    empty = backend.launch(matmul, on(backend, normal(rng, 3, 0)), on(backend, normal(rng, 0, 4)), ta=False, tb=False)
    assert not backend.download(empty).any()
    image, weight = on(backend, normal(rng, 4, 6, 6, 2)), on(backend, normal(rng, 8, 4, 3, 3))
    out = backend.launch(conv2d, image, weight, window=Window((3, 3)), groups=1)  # element by element
    backend.launch(conv2d_weight_grad, image, out, window=Window((3, 3)), groups=1, chunk=64)
    assert sorted(kept(folder)) == ["16x8 8x8 tn 4", "8x32 32x64 taps 1"]
    assert class_of(Product(1, 2, 3, 4, "nt")) == "1x4 4x2 nt 4"


def test_a_captured_step_is_the_eager_one(opened: Callable[[], Any], folder: Path, timed: list[int]) -> None:
    """Whatever is chosen: eager and captured launches of a product are of one class."""
    backend, rng = opened(), np.random.default_rng(3)
    a, b = on(backend, normal(rng, 40, 30)), on(backend, normal(rng, 30, 40))
    with record(backend) as recording:
        out = backend.launch(matmul, a, b, ta=False, tb=False)
    eager = backend.download(out)
    recording.finished().run()
    np.testing.assert_array_equal(backend.download(out), eager)
    assert len(kept(folder)) == 1


def test_a_second_process_on_lavapipe(folder: Path, lavapipe: str) -> None:
    """From the outside: the variable, the file, and a process that would fail if it measured."""
    program = ("import sys, ag, numpy as np\nfrom ag.engine.backends.vulkan.products import autotune\n"
               "autotune._MOST_SECONDS = 0\n"
               "if sys.argv[2] == 'kept': autotune.seconds_of = None\n"
               "ag.ag_device(sys.argv[1])\nx = ag.ag_tensor(np.ones((4, 4), np.float32))\n"
               "print(ag.ag_matmul(x, x).numpy().sum())")
    environment = {**os.environ, "AG_TUNE": "1"}
    for word in ("new", "kept"):
        done = subprocess.run([sys.executable, "-c", program, lavapipe, word], env=environment, text=True,
                              capture_output=True, timeout=60, check=True)
        assert done.stdout == "64.0\n" and done.stderr == ""
    assert list(kept(folder)) == ["4x4 4x4 nn 1"]


def test_the_choice_is_told_to_whoever_listens(
    opened: Callable[[], Any], timed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "ag"):
        product(opened())
    assert f"tiles for {CLASS} take fixed" in caplog.text


def test_kinds_that_have_no_turn_in_time(
    opened: Callable[[], Any], folder: Path, timed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened()
    monkeypatch.setattr(tune, "_MOST_SECONDS", 0.0)
    product(backend)
    assert len(timed) == 1 and kept(folder) == {CLASS: "fixed"}  # what the table says comes first


def test_kinds_that_do_not_fit_the_device(opened: Callable[[], Any]) -> None:
    backend = opened()
    rule = Tiles(1, ())
    for limits, kinds in (({"max_work_group_invocations": 64, "max_shared_memory": 16384}, ["S"]),
                          ({"max_work_group_invocations": 128, "max_shared_memory": 10000}, ["S"]),
                          ({"max_work_group_invocations": 128, "max_shared_memory": 16384}, ["S", "V"])):
        limits |= {"max_work_group_size": (1024, 1024, 64), "max_storage_buffers": 16, "driver_id": 0,
                   "required_subgroup_sizes": (0, 0)}
        assert list(Tune(backend, rule, limits)._rules) == kinds
