"""AG_TUNE=1: the quickest tiles are measured once per class of products, kept in a file, and used from then on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.tiled import normal, on

import ag
from ag.engine.backends.shader import autotune as tune
from ag.engine.backends.shader import cache_files
from ag.engine.backends.shader.autotune import Choices, Tune, choices_of, class_of
from ag.engine.backends.shader.plans import Product
from ag.engine.backends.shader.tiles import TILES, Tiles
from ag.engine.backends.vulkan.backend import VulkanBackend
from ag.engine.compile.pipeline import record
from ag.engine.kernels.conv import conv2d, conv2d_weight_grad
from ag.engine.kernels.matmul import batched_matmul, matmul
from ag.engine.primitive import Primitive
from ag.engine.shape import Window

CLASS = "16x32 32x16 nn 1"
NN = {"ta": False, "tb": False}
LIMITS: Any = {"max_work_group_invocations": 128, "max_shared_memory": 16384, "max_work_group_size": (1024, 1024, 64),
               "max_storage_buffers": 16, "driver_id": 0, "required_subgroup_sizes": (0, 0)}
pytestmark = pytest.mark.vulkan


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache directory's folder of ag, which is not there yet; this process has measured nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tune, "_WARM_SECONDS", 0.0)
    choices_of.cache_clear()
    cache_files._warn.cache_clear()
    yield tmp_path / "ag"
    choices_of.cache_clear()


class Counted:
    """A device that runs nothing; `tuned` chooses for it, as a process of its own would."""

    name, info = "vulkan:9", SimpleNamespace(description="A card", vendor="V", driver="1")
    recorder = SimpleNamespace(build=lambda commands: None, wait=lambda: None, play=lambda sequences: None)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = {"fixed": 3.0, "S": 2.0, "V": 1.0}
        self.timed: list[str] = []
        monkeypatch.setattr(tune, "time_of", self._seconds)
        monkeypatch.setattr(tune, "TILES", {kind: TILES[kind] for kind in ("S", "V")})

    def _seconds(self, _recorder: Any, command: Any) -> float:
        self.timed.append(command.kind)
        return self.seconds[command.kind]

    def alloc(self, shape: Any, _dtype: Any) -> Any:
        return SimpleNamespace(shape=shape)

    def upload(self, *_: Any) -> None:
        pass

    def command(self, _primitive: Any, _buffers: Any, _params: Any, tiles: Any) -> Any:
        return SimpleNamespace(kind="fixed" if tiles.fixed else tiles.forced, _replace=lambda kernel: None)

    def tuned(self) -> Tune:
        choices_of.cache_clear()
        return Tune(self, Tiles(1, (), fixed=True, direct_rows=9), LIMITS)  # type: ignore[arg-type]

    def chosen(self, rows: int = 13, inner: int = 30, cols: int = 16, by: Tune | None = None) -> str:
        rule = (by or self.tuned()).rule(matmul, ((rows, cols), (rows, inner), (inner, cols)), NN)
        return "fixed" if rule.fixed else rule.forced


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def kept(folder: Path) -> dict[str, str]:
    (file,) = folder.glob("*.json")  # compiled kernels are kept there, too
    choices: dict[str, str] = json.loads(file.read_text())["choices"]
    return choices


def test_a_card_is_warm_before_it_is_timed(card: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its clock rises with work, the first of several kinds would be found slow."""
    played: list[Any] = []
    monkeypatch.setattr(tune, "_WARM_SECONDS", 4.0)
    monkeypatch.setattr(tune, "perf_counter", lambda: len(played))
    monkeypatch.setattr(tune, "_timed", lambda recorder, sequence: played.append(sequence))
    tune.warm_up(card.recorder, card.command(None, (), {}, Tiles(1, ())))
    assert len(played) == 4
    tune.warm_up(card.recorder, None)
    assert len(played) == 4


def test_a_choice_is_kept_and_no_other_process_measures(card: Counted, folder: Path) -> None:
    first = card.tuned()
    assert card.chosen(by=first) == "V" and card.timed == ["fixed", "S", "V"]  # the table's comes first
    assert kept(folder) == {CLASS: "V"}
    assert card.chosen(by=first) == card.chosen(16, 20, 9, first) == card.chosen() == "V"  # all of one class
    assert len(card.timed) == 3
    assert card.chosen(17) == "V" and len(card.timed) == 6
    assert list(kept(folder)) == [CLASS, "32x32 32x16 nn 1"]


def test_what_was_chosen_is_used_if_this_device_can(card: Counted, folder: Path) -> None:
    card.chosen()
    (file,) = folder.iterdir()
    before = file.read_text()
    for kind in ("fixed", "S"):
        file.write_text(before.replace('"V"', f'"{kind}"'))
        assert card.chosen() == kind and len(card.timed) == 3
    file.write_text(before.replace('"V"', '"XXL"'))
    assert card.chosen() == "V" and len(card.timed) == 6 and file.read_text() == before


@pytest.mark.parametrize(("change", "message"), [
    ("{", "cannot be read"), ("[" * 9999, "cannot be read"), ("[1]", "is no file of choices"),
    ('{"choices": 1}', "is no file of choices"), ('{"choices": {"a": "S"}}', "was made for another format"),
    ({"device": "another"}, "was made for another device"), ({"driver": "another"}, "was made for another driver"),
    ({"kernels": "another"}, "was made for another kernels"),
    ({"choices": {"a": 1}}, "holds a choice that is no word"),
])
def test_a_broken_or_foreign_file_is_named_once_and_replaced(folder: Path, caplog: pytest.LogCaptureFixture,
                                                             change: str | dict[str, object], message: str) -> None:
    assert choices_of("a device", "1", "hash").keep("a", "S", {"S"}) == "S"
    file = folder / "a-device.json"
    before = file.read_text()
    file.write_text(change if isinstance(change, str) else json.dumps({**json.loads(before), **change}))
    choices_of.cache_clear()
    found = choices_of("a device", "1", "hash")
    assert found.get("a") is None and found.keep("a", "S", {"S"}) == "S" and file.read_text() == before
    (text,) = caplog.messages
    assert f"{file} {message}" in text


def test_what_another_process_chose_meanwhile_holds(folder: Path) -> None:
    one, two = (Choices("device.json", "device", "1", "hash") for _ in range(2))
    assert one.keep("a", "L", {"L", "M", "S"}) == "L" and two.keep("b", "M", {"L", "M", "S"}) == "M"
    assert two.keep("a", "S", {"L", "M", "S"}) == two.get("a") == "L"
    assert two.keep("a", "S", {"M", "S"}) == "S" and two.keep("a", "L", {"L", "M", "S"}) == "S"
    assert json.loads((folder / "device.json").read_text())["choices"] == {"a": "S", "b": "M"}
    assert [path.name for path in folder.iterdir()] == ["device.json"]


@pytest.mark.parametrize("where", ["alloc", "command"])
def test_no_room_to_measure(card: Counted, folder: Path, caplog: pytest.LogCaptureFixture,
                            monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def full(*_: Any) -> None:
        raise ag.ArenaError("the arena is full")

    monkeypatch.setattr(card, where, full)
    assert card.chosen() == "fixed" and not card.timed and not folder.exists()
    assert "for want of memory (the arena is full)" in caplog.text


def test_products_and_convolutions_have_classes(card: Counted, folder: Path) -> None:
    by, window = card.tuned(), Window((3, 3))

    def choose(primitive: Primitive, operands: tuple[tuple[int, ...], ...], **params: Any) -> None:
        by.rule(primitive, (primitive.shape(*operands, **params), *operands), params)

    choose(batched_matmul, ((3, 5, 9), (3, 5, 7)), ta=True, tb=False, chunk=64)
    choose(matmul, ((3, 0), (0, 4)), **NN)  # of nothing
    choose(conv2d, ((4, 6, 6, 2), (8, 4, 3, 3)), window=window, groups=1)  # element by element
    choose(conv2d_weight_grad, ((4, 6, 6, 2), (8, 4, 4, 2)), window=window, groups=1, chunk=64)
    assert sorted(kept(folder)) == ["16x8 8x8 tn 4", "8x32 32x64 taps 1"]
    assert class_of(Product(1, 2, 3, 4, "nt")) == "1x4 4x2 nt 4"


def test_the_times_are_in_the_log(card: Counted, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ag"):
        card.chosen()
    assert f"tiles for {CLASS} take fixed 3000000 us, S" in caplog.text


def test_kinds_that_have_no_turn_in_time(card: Counted, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "_MOST_SECONDS", 0.0)
    assert card.chosen() == "fixed" and card.timed == ["fixed"] and kept(folder) == {CLASS: "fixed"}


def test_kinds_that_do_not_fit_the_device(card: Counted) -> None:
    for limits, kinds in (({"max_work_group_invocations": 64}, ["S"]), ({"max_shared_memory": 10000}, ["S"]),
                          ({}, ["S", "V"])):
        assert list(Tune(card, Tiles(1, ()), {**LIMITS, **limits})._rules) == kinds  # type: ignore[arg-type]


def test_a_device_measures_and_captures_what_it_chose(swiftshader: str, folder: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (normal(np.random.default_rng(3), *shape) for shape in ((40, 30), (30, 40)))
    for tuned in (False, True):
        monkeypatch.setenv("AG_TUNE", "1")
        monkeypatch.setenv("AG_MATMUL_TILE", "" if tuned else "V")  # which says it already
        monkeypatch.setattr(tune, "TILES", {})  # but for the fixed one, kinds take time to compile
        backend: Any = VulkanBackend(int(swiftshader.split(":")[1]), guard=256)
        assert (backend._tune is not None) is tuned
        if tuned:
            x, y = on(backend, a), on(backend, b)
            with record(backend) as recording:
                out = backend.launch(matmul, x, y, **NN)
            eager = backend.download(out)
            np.testing.assert_allclose(eager, a @ b, rtol=1e-4, atol=1e-4)
            recording.finished().run()
            np.testing.assert_array_equal(backend.download(out), eager)
            backend.check_guards()
            assert kept(folder) == {"64x32 32x64 nn 1": "fixed"}
        else:
            assert not folder.exists()
