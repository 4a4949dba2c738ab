"""ag_image_folder: what is cut out of an image, when it is mirrored, how it is normalised, and what decides that."""

from __future__ import annotations

import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.fuzz import mutations
from helpers.properties import examples
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import ag
from ag.data.image_folder import Fit, ImageFiles
from ag.data.samples import Pass

RNG = np.random.default_rng(7)
BILINEAR = Image.Resampling.BILINEAR


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of eight images, wide, high and square, of which every pixel is another."""
    root = tmp_path / "images"
    for kind in ("ant", "bee"):
        (root / kind).mkdir(parents=True)
        for k, size in enumerate([(40, 30), (30, 44), (33, 33), (90, 31)] * 2):
            pixels = RNG.integers(0, 256, (size[1], size[0], 3), np.uint8)
            Image.fromarray(pixels).save(root / kind / f"{k}.png")
    return root


def pictures(loader: Any) -> np.ndarray:
    return np.concatenate([batch.x.numpy() for batch in loader], -1)


def scaled(file: Path, side: int) -> Image.Image:
    image = Image.open(file)
    return image.resize(tuple(side * s // min(image.size) for s in image.size), BILINEAR)


def test_the_middle_is_cut_out_of_the_scaled_image(folder: Path) -> None:
    loader = ag.ag_image_folder(folder, (16, 20), shuffle=False, shorter_side=24)
    for i, found in enumerate(np.moveaxis(pictures(loader), -1, 0)):
        whole = np.asarray(scaled(loader.files[i], 24))
        top, left = (round((have - wanted) / 2) for have, wanted in zip(whole.shape[:2], (16, 20), strict=True))
        expected = whole[top : top + 16, left : left + 20].transpose(2, 0, 1) / np.float32(255)
        np.testing.assert_array_equal(found, expected)


def test_normalised_colours(folder: Path) -> None:
    mean, deviation = (0.5, 0.25, 0.1), (0.2, 0.3, 0.5)
    plain = pictures(ag.ag_image_folder(folder, 8, shuffle=False))
    found = pictures(ag.ag_image_folder(folder, 8, shuffle=False, normalize=(mean, deviation)))
    expected = (plain - np.array(mean)[:, None, None, None]) / np.array(deviation)[:, None, None, None]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def windows(image: np.ndarray, whole: np.ndarray) -> list[tuple[int, int, bool]]:
    """List the places in the whole that an image can be from: top, left, and whether it is mirrored."""
    h, w = image.shape[:2]
    return [(top, left, flip) for flip in (False, True) for top in range(whole.shape[0] - h + 1)
            for left in range(whole.shape[1] - w + 1)
            if np.array_equal(image[:, ::-1] if flip else image, whole[top : top + h, left : left + w])]


def test_random_windows_are_of_the_image_and_everywhere_in_it(folder: Path) -> None:
    loader = ag.ag_image_folder(folder, 10, shuffle=False, seed=3, shorter_side=12, random_crop=True, random_flip=True)
    found: list[list[tuple[int, int, bool]]] = []
    for _ in range(20):
        for i, x in enumerate(np.moveaxis(pictures(loader), -1, 0)[:3]):
            whole = np.asarray(scaled(loader.files[i], 12))
            found.append(windows((x.transpose(1, 2, 0) * 255).round().astype(np.uint8), whole))
    assert all(len(places) == 1 for places in found)
    (tops, lefts, flips) = ({place[k] for (place,) in found} for k in range(3))
    assert tops >= {0, 1, 2} and lefts >= {0, 1, 2} and flips == {False, True}
    assert 0.3 < np.mean([place[2] for (place,) in found]) < 0.7


OPTIONS: dict[str, Any] = {"shorter_side": 14, "random_crop": True, "random_flip": True}


def by_number(loader: Any) -> np.ndarray:
    """The images of an epoch in the order of the files."""
    order = loader.order
    return pictures(loader)[..., np.argsort(order)]


def test_what_is_drawn_follows_from_seed_pass_and_image_alone(folder: Path) -> None:
    plain = ag.ag_image_folder(folder, 10, shuffle=False, seed=1, prefetch=0, batch_size=16, **OPTIONS)
    epochs = [pictures(plain) for _ in range(2)]
    assert not np.array_equal(*epochs)
    for batch_size, prefetch in ((1, 0), (5, 3)):
        other = ag.ag_image_folder(folder, 10, batch_size, seed=1, prefetch=prefetch, **OPTIONS)
        assert all(np.array_equal(by_number(other), epoch) for epoch in epochs)
    assert not np.array_equal(pictures(ag.ag_image_folder(folder, 10, shuffle=False, seed=2, **OPTIONS)), epochs[0])
    resumed = ag.ag_image_folder(folder, 10, 16, shuffle=False, seed=9, **OPTIONS)
    resumed.load_state_dict({**plain.state_dict(), "epoch": 1, "next": 0})
    assert np.array_equal(pictures(resumed), epochs[1])


@examples
@given(size=st.tuples(st.integers(1, 60), st.integers(1, 60)), wanted=st.tuples(st.integers(1, 12), st.integers(1, 12)),
       more=st.integers(0, 5), seed=st.integers(-2**70, 2**70), turn=st.integers(0, 2**40), crop=st.booleans())
def test_any_image_becomes_one_of_the_wanted_size(tmp_path_factory: pytest.TempPathFactory, size: Any, wanted: Any,
                                                  more: int, seed: int, turn: int, crop: bool) -> None:
    file = tmp_path_factory.getbasetemp() / "any.png"
    Image.new("RGB", size, (255, 0, 51)).save(file)
    images = ImageFiles([file], Fit(*wanted, max(wanted) + more, random_crop=crop, random_flip=True))
    (x,) = images.take(np.array([0]), lambda: None, Pass(seed, turn))
    assert x.shape == (3, *wanted, 1)
    np.testing.assert_allclose(x[:, 0, 0, 0], (1, 0, 0.2))


def test_an_image_that_would_be_too_large_is_named(tmp_path: Path) -> None:
    """A line of pixels, scaled until it is as wide as asked for, would be longer than memory."""
    (tmp_path / "a").mkdir()
    Image.new("1", (20_000, 1)).save(tmp_path / "a" / "line.png")
    with expect_error("ag_image_folder: a line of pixels", ValueError, "line.png", "20000 x 1", "pixels"):
        ag.ag_image_folder(tmp_path, 224, shorter_side=256).next_batch()


@pytest.mark.parametrize(("options", "fragments"), [
    ({"shorter_side": 9}, ["shorter_side is 9", "(10, 10)", "at least 10"]),
    ({"shorter_side": 12.5}, ["shorter_side is 12.5"]), ({"shorter_side": True}, ["shorter_side is True"]),
    ({"random_crop": True}, ["random_crop was given without shorter_side"]),
    ({"random_crop": 1, "shorter_side": 12}, ["random_crop is 1", "True or False"]),
    ({"random_flip": "yes"}, ["random_flip is 'yes'"]),
    ({"normalize": ((0, 0, 0), (1, 1, 0))}, ["normalize is", "positive"]),
    ({"normalize": (0.5, 0.5)}, ["normalize is (0.5, 0.5)"]), ({"normalize": "imagenet"}, ["normalize is 'imagenet'"]),
    ({"normalize": ((0, 0), (1, 1))}, ["three means"]), ({"normalize": ((0, 0, np.nan), (1, 1, 1))}, ["finite"])])
def test_settings_that_will_not_do(folder: Path, options: dict[str, Any], fragments: list[str]) -> None:
    with expect_error(f"ag_image_folder with {options}", ValueError, "ag_image_folder:", *fragments):
        ag.ag_image_folder(folder, 10, **options)


def test_a_broken_image_is_named_when_it_is_cut_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "crop", lambda *given: (_ for _ in ()).throw(struct.error("of a kind")))
    with expect_error("ag_image_folder: an image that cannot be cut", ValueError, "0.png", "of a kind"):
        ag.ag_image_folder(folder, 10, shuffle=False, shorter_side=12).next_batch()


def encoded(form: str) -> bytes:
    file = BytesIO()
    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(file, form)
    return file.getvalue()


@pytest.mark.parametrize("count", [150, pytest.param(3_000, marks=pytest.mark.slow)])  # of each of seven formats
@pytest.mark.parametrize("form", ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"])
@pytest.mark.filterwarnings("ignore")  # Pillow warns of damaged tags
def test_damaged_images(tmp_path: Path, form: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path, chosen = tmp_path / "1.png", np.array([0])
    images = ImageFiles([path], Fit(4, 5))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1 << 20)
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("a program was started"))
    read = 0
    for content in mutations(encoded(form), count, seed=7):
        path.write_bytes(content)
        try:
            (found,) = images.take(chosen, lambda: None, Pass(0, 0))
        except ValueError as error:
            assert str(error).startswith(f"ag_image_folder: {path} cannot be decoded")
        else:
            assert found.shape == (3, 4, 5, 1) and found.dtype == np.float32 and 0 <= found.min() <= found.max() <= 1
            read += 1
    assert count / 50 < read < count
