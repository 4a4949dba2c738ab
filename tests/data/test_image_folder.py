"""Images in a folder per class: what comes out of the files, in which order, and what is said about broken ones."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from PIL import Image

import ag

COLOURS = {"ant": (255, 0, 0), "bee": (0, 255, 0), "cat": (0, 0, 255)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes with 3, 4 and 5 images; the k-th of a class has brightness k / 5 of its colour."""
    root = tmp_path / "images"
    for count, (name, colour) in enumerate(COLOURS.items(), 3):
        (root / name).mkdir(parents=True)
        for k in range(1, count + 1):
            Image.new("RGB", (6, 4), tuple(c * k // 5 for c in colour)).save(root / name / f"{k}.png")
    return root


def samples(loader: Any) -> list[tuple[int, float]]:
    """Class and brightness of the rest of an epoch, in order."""
    found = []
    for batch in loader:
        x = batch.x.numpy()
        for i, k in enumerate(batch.y):
            assert np.ptp(x[k, :, :, i]) == 0 and x[:, :, :, i].sum() == x[k, :, :, i].sum()
            found.append((int(k), float(x[k, 0, 0, i])))
    return found


ALL = [(k, np.float32(255 * n // 5) / np.float32(255)) for k in range(3) for n in range(1, k + 4)]


def test_batches(folder: Path, device: str) -> None:
    loader = ag.ag_image_folder(folder, size=(4, 6), batch_size=5, shuffle=False)
    batches = list(loader)
    assert [b.x.shape for b in batches] == [(3, 4, 6, 5), (3, 4, 6, 5), (3, 4, 6, 2)]
    assert {(b.x.device, b.x.dtype) for b in batches} == {(device, "f32")}
    assert all(b.y.dtype.kind == "i" for b in batches)
    assert loader.classes == ["ant", "bee", "cat"] and len(loader) == loader.n_batches() == 3
    assert samples(loader) == ALL


def test_pixels_are_where_they_were(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    (tmp_path / "one").mkdir()
    Image.fromarray(pixels).save(tmp_path / "one" / "1.png")
    x = ag.ag_image_folder(tmp_path, size=(5, 7)).next_batch().x.numpy()
    np.testing.assert_array_equal(x[..., 0], pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255))
    wide = ag.ag_image_folder(tmp_path, size=3).next_batch().x.numpy()
    expected = np.asarray(Image.fromarray(pixels).resize((3, 3), Image.Resampling.BILINEAR)) / np.float32(255)
    np.testing.assert_array_equal(wide[..., 0], expected.transpose(2, 0, 1))


def test_every_kind_of_image_becomes_colours_from_0_to_1(tmp_path: Path) -> None:
    (tmp_path / "kinds").mkdir()
    for mode, suffix in (("L", "png"), ("1", "png"), ("P", "gif"), ("RGBA", "png"), ("CMYK", "jpg"), ("LA", "PNG")):
        Image.new(mode, (4, 4)).save(tmp_path / "kinds" / f"{mode}.{suffix}")
    loader = ag.ag_image_folder(tmp_path, size=4)
    x = loader.next_batch().x.numpy()
    assert x.shape == (3, 4, 4, 6) and x.min() >= 0 and x.max() <= 1


def test_only_images_in_folders_count(folder: Path) -> None:
    (folder / "readme.txt").write_text("about")
    (folder / "1.png").write_bytes(b"")
    (folder / ".hidden").mkdir()
    (folder / "ant" / "notes.txt").write_text("about")
    deep = folder / "bee" / "more"
    deep.mkdir()
    Image.new("RGB", (6, 4), (0, 255, 0)).save(deep / "9.JPG")
    loader = ag.ag_image_folder(folder, size=2)
    assert loader.classes == ["ant", "bee", "cat"] and loader.n_samples == 13
    assert deep / "9.JPG" in loader.files


# ---------------------------------------------------------------------------------------------- order


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_the_seed_decides_the_order_and_prefetching_changes_nothing(folder: Path, prefetch: int) -> None:
    plain = ag.ag_image_folder(folder, size=2, batch_size=5, seed=1, prefetch=0)
    other = ag.ag_image_folder(folder, size=2, batch_size=5, seed=1, prefetch=prefetch)
    epochs = [samples(plain) for _ in range(3)]
    assert [samples(other) for _ in range(3)] == epochs
    assert all(sorted(epoch) == sorted(ALL) for epoch in epochs) and epochs[0] != epochs[1] != ALL
    assert samples(ag.ag_image_folder(folder, size=2, seed=2)) != epochs[0]


def test_resuming_in_the_middle_gives_the_same_sequence(folder: Path) -> None:
    loader = ag.ag_image_folder(folder, size=2, batch_size=5, seed=1)
    loop = iter(loader)
    next(loop)
    state = loader.state_dict()
    expected = [samples(loop), samples(loader)]
    resumed = ag.ag_image_folder(folder, size=2, batch_size=5, seed=9)
    resumed.load_state_dict(state)
    assert [samples(resumed), samples(resumed)] == expected
    (folder / "ant" / "3.png").unlink()
    with expect_error("a state of a folder with more images", ag.CheckpointError, "12 samples", "11"):
        ag.ag_image_folder(folder, size=2, batch_size=5).load_state_dict(state)


def test_one_by_one(folder: Path) -> None:
    loader = ag.ag_image_folder(folder, size=2, batch_size=5, drop_last=True)
    seen = []
    while loader.has_next():
        seen.append(loader.next_batch().x.shape[-1])
    assert seen == [5, 5]
    with expect_error("next_batch at the end of a folder's epoch", StopIteration, "ag_image_folder", "reset()"):
        loader.next_batch()


def test_an_image_is_decoded_when_its_batch_is_due(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    real = Image.open
    monkeypatch.setattr(Image, "open", lambda file: opened.append(file) or real(file))
    loader = ag.ag_image_folder(folder, size=2, batch_size=5, seed=1, prefetch=1)
    loader.load_state_dict({**loader.state_dict(), "next": 1})
    assert opened == []
    due = [loader.files[k] for k in loader.order[5:]]
    assert len(samples(loader)) == 7 and opened == due


def test_images_are_decoded_off_the_training_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    resize = Image.Image.resize

    def seen(*args: Any, **options: Any) -> Any:
        threads.add(threading.current_thread())
        return resize(*args, **options)

    monkeypatch.setattr(Image.Image, "resize", seen)
    samples(ag.ag_image_folder(folder, size=2, batch_size=5))
    assert threads and threading.main_thread() not in threads


# ---------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("kind", ["text", "empty", "truncated", "half a png"])
def test_a_broken_image_is_named(folder: Path, prefetch: int, kind: str) -> None:
    broken = folder / "bee" / "2.png"
    if kind == "truncated":
        broken = folder / "bee" / "5.jpg"
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 50, 3), np.uint8)).save(broken)
    whole = broken.read_bytes()
    broken.write_bytes({"text": b"no image", "empty": b"", "truncated": whole[:-500], "half a png": whole[:40]}[kind])
    loader = ag.ag_image_folder(folder, size=2, batch_size=3, shuffle=False, prefetch=prefetch)
    seen = []
    with expect_error(f"ag_image_folder: a broken image ({kind})", ValueError, "ag_image_folder", str(broken)):
        for batch in loader:
            seen.append(batch)
    assert len(seen) in (1, 2)  # the batches before it


def test_a_bomb_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)
    with expect_error("ag_image_folder: an image too large to be one", ValueError, "1.png", "cannot be decoded"):
        ag.ag_image_folder(folder, size=2, shuffle=False).next_batch()


def test_folders_that_will_not_do(folder: Path, tmp_path: Path) -> None:
    with expect_error("ag_image_folder: no such folder", FileNotFoundError, "nowhere"):
        ag.ag_image_folder(tmp_path / "nowhere", size=2)
    with expect_error("ag_image_folder: no class folders", ValueError, "ant", "holds no folders"):
        ag.ag_image_folder(folder / "ant", size=2)
    (folder / "dog").mkdir()
    with expect_error("ag_image_folder: a class without images", ValueError, "dog", "holds no images"):
        ag.ag_image_folder(folder, size=2)


@pytest.mark.parametrize("size", [0, (2,), (2, -1), (2, 2, 2), 1.5, "22"])
def test_a_size_that_is_none(folder: Path, size: Any) -> None:
    with expect_error("ag_image_folder: size", ValueError, "ag_image_folder: size is", repr(size)):
        ag.ag_image_folder(folder, size=size)


def test_numbers_out_of_range(folder: Path) -> None:
    with expect_error("ag_image_folder: batch_size", ValueError, "ag_image_folder: batch_size is 0"):
        ag.ag_image_folder(folder, size=2, batch_size=0)


def test_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with expect_error("ag_image_folder: Pillow is not installed", ImportError, "pip install ag[images]"):
        ag.ag_image_folder(folder, size=2)
