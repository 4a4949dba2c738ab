"""Images in a folder per class: what comes out of the files, in which order, and what is said about broken ones."""

from __future__ import annotations

import os
import struct
import sys
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


def grey(tmp_path: Path, name: str, content: Any, **options: Any) -> ag.ag_image_folder:
    """A loader of one file, with an image, an array that becomes one, or bytes."""
    (tmp_path / "grey").mkdir(exist_ok=True)
    file = tmp_path / "grey" / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        image = Image.fromarray(content) if isinstance(content, np.ndarray) else content
        image.save(file, **options)
    return ag.ag_image_folder(tmp_path, size=(2, 2))


SHADES = np.array([[0, 0.25], [0.5, 1]])
PGM = b"P5 2 2 %d\n"


@pytest.mark.parametrize(("name", "content", "digits"), [
    ("16.png", (SHADES * 65535).astype(np.uint16), 4.5), ("16.tif", (SHADES * 65535).astype(np.uint16), 4.5),
    ("16.ppm", PGM % 65535 + (SHADES * 65535).astype(">u2").tobytes(), 4.5),
    ("10.ppm", PGM % 1023 + (SHADES * 1023).astype(">u2").tobytes(), 3),
    ("4.ppm", PGM % 4 + (SHADES * 4).astype("u1").tobytes(), 2.5),
    ("f.tiff", SHADES.astype(np.float32), 9), ("8.png", (SHADES * 255).astype(np.uint8), 2.2),
    ("black.tiff", np.zeros((2, 2), np.float32), 9), ("la.png", (SHADES * 255).astype(np.uint8), 2.2),
    ("rgb.ppm", b"P6 2 2 65535\n" + np.repeat((SHADES * 65535).astype(">u2"), 3).tobytes(), 2),
])
def test_shades_of_every_depth(tmp_path: Path, name: str, content: Any, digits: float) -> None:
    if name == "la.png":
        content = Image.fromarray(content).convert("LA")
    expected = np.zeros((2, 2)) if name == "black.tiff" else SHADES
    x = grey(tmp_path, name, content).next_batch().x.numpy()
    assert x.dtype == np.float32 and x.shape == (3, 2, 2, 1)
    assert (x[0] == x[1]).all() and (x[0] == x[2]).all()
    np.testing.assert_allclose(x[0, :, :, 0], expected, rtol=0, atol=10**-digits)


def tiff(bits: int, white_is_zero: bool = False, form: int = 1, order: str = "<") -> bytes:
    """A grey image of 2 x 2 in the TIFF format: SHADES, as numbers of a kind (1 unsigned, 2 signed, 3 floats)."""
    numbers = SHADES * (1 if form == 3 else 4095 if bits == 12 else 2 ** (bits - (form == 2)) - 1)
    if bits == 12:
        rows = b"".join((int(a) << 12 | int(b)).to_bytes(3, "big") for a, b in numbers)
    else:
        rows = numbers.astype(f"{order}{'_uif'[form]}{bits // 8}").tobytes()
    tags = [(256, 2), (257, 2), (258, bits), (259, 1), (262, int(not white_is_zero)), (273, 200), (277, 1), (278, 2),
            (279, len(rows)), (339, form)]
    mark = {"<": b"II", ">": b"MM"}[order]
    head = mark + struct.pack(f"{order}HIH", 42, 8, len(tags))
    head += b"".join(struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in tags) + bytes(4)
    return head.ljust(200, b"\0") + rows


@pytest.mark.parametrize("content", [tiff(16), tiff(16, order=">"), tiff(12), tiff(32, form=3), tiff(8),
                                     tiff(8, white_is_zero=True)])
def test_tiffs_of_every_kind(tmp_path: Path, content: bytes) -> None:
    x = grey(tmp_path, "1.tiff", content).next_batch().x.numpy()[0, :, :, 0]
    expected = 1 - SHADES if content == tiff(8, white_is_zero=True) else SHADES
    np.testing.assert_allclose(x, expected, rtol=0, atol=1 / 200)


@pytest.mark.parametrize(("content", "fragments"), [
    (np.full((2, 2), 70000, np.int32), ["mode I", "white is unknown"]),
    (tiff(16, form=2), ["mode I", "white is unknown"]), (tiff(32), ["mode I", "white is unknown"]),
    (tiff(8, form=2), ["mode L", "white is unknown"]),
    (tiff(16, white_is_zero=True), ["zero is white"]), (tiff(32, white_is_zero=True, form=3), ["zero is white"]),
    (np.array([[0, 255], [3, 4]], np.float32), ["numbers from 0 to 255", "1 white"]),
    (np.array([[-0.5, 1], [0, 0]], np.float32), ["numbers from -0.5 to 1"]),
    (np.array([[np.nan, 1], [0, 0]], np.float32), ["nan"]), (Image.new("LAB", (2, 2)), ["mode LAB"]),
], ids=[*"abcdefghij"])
def test_images_whose_white_is_unknown_are_refused(tmp_path: Path, content: Any, fragments: list[str]) -> None:
    with expect_error("ag_image_folder: an image of another kind", ValueError, "ag_image_folder", "1.tiff", *fragments):
        grey(tmp_path, "1.tiff", content).next_batch()


def test_deep_images_are_resized(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 64).astype(np.uint16)[None].repeat(8, 0)
    (tmp_path / "a").mkdir()
    Image.fromarray(ramp).save(tmp_path / "a" / "1.png")
    Image.fromarray((ramp / 257).astype(np.uint8)).save(tmp_path / "a" / "2.png")
    Image.fromarray((ramp / 65535).astype(np.float32)).save(tmp_path / "a" / "3.tiff")
    x = ag.ag_image_folder(tmp_path, size=(4, 8), shuffle=False).next_batch().x.numpy()
    assert x.shape == (3, 4, 8, 3)
    np.testing.assert_allclose(x[..., 0], x[..., 1], atol=0.01)
    np.testing.assert_allclose(x[..., 0], x[..., 2], atol=1e-4)


def test_transparency_and_orientation_are_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGBA", (2, 2), (255, 0, 0, 0)).save(tmp_path / "a" / "1.png")
    pixels = Image.fromarray(np.array([[255, 0], [0, 0]], np.uint8))
    turned = Image.Exif()
    turned[0x0112] = 3
    pixels.save(tmp_path / "a" / "2.png", exif=turned)
    x = ag.ag_image_folder(tmp_path, size=2, shuffle=False).next_batch().x.numpy()
    assert (x[0, ..., 0] == 1).all() and (x[1:, ..., 0] == 0).all()
    assert x[0, ..., 1].tolist() == [[1, 0], [0, 0]]


def test_hidden_files_are_no_samples(folder: Path) -> None:
    (folder / "ant" / "._1.png").write_bytes(b"of a Mac")
    (folder / "ant" / ".thumbnails").mkdir()
    (folder / "ant" / ".thumbnails" / "1.png").write_bytes(b"")
    (folder / "ant" / "again.png").symlink_to("1.png")
    (folder / "ant" / "once.png").hardlink_to(folder / "ant" / "1.png")
    loader = ag.ag_image_folder(folder, size=2)
    assert [file.name for file in loader.files[:5]] == ["1.png", "2.png", "3.png", "again.png", "once.png"]
    assert len(samples(loader)) == loader.n_samples == 14


def test_links_to_folders_are_followed(folder: Path, tmp_path: Path) -> None:
    """Also to those above, once: a folder that holds itself is no further one."""
    before = ag.ag_image_folder(folder, 4)
    first, other = before.classes[0], tmp_path / "elsewhere"
    (other / "deeper").mkdir(parents=True)
    for path in (other / "1.png", other / "deeper" / "2.png"):
        Image.new("RGB", (4, 4)).save(path)
    (folder / first / "more").symlink_to(other, target_is_directory=True)
    (other / "back").symlink_to(folder / first, target_is_directory=True)
    found = ag.ag_image_folder(folder, 4)
    new = {"more/1.png", "more/deeper/2.png"}
    assert {str(p.relative_to(folder / first)) for p in {*found.files} - {*before.files}} == new
    assert len(found.files) == len(before.files) + 2 and next(iter(found)).x.ndim == 4


def test_what_is_assigned_later_changes_nothing(folder: Path) -> None:
    loader = ag.ag_image_folder(folder, size=2, shuffle=False)
    loader.files.reverse()
    for name in ("size", "path", "classes", "files", "ids", "shorter_side", "random_crop", "random_flip", "normalize"):
        with expect_error("a setting of a folder that is assigned", AttributeError, f"ag_image_folder: {name} was set"):
            setattr(loader, name, None)
    with pytest.raises(ValueError, match="read-only"):
        loader.ids[0] = 3
    assert samples(loader) == ALL


def test_paths_and_sizes_of_every_kind(folder: Path) -> None:
    for path, size in ((str(folder), (2, 3)), (os.fsencode(folder), [np.int64(2), np.uint8(3)])):
        assert ag.ag_image_folder(path, size=size).next_batch().x.shape == (3, 2, 3, 12)


def test_an_image_that_is_gone_or_may_not_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = ag.ag_image_folder(folder, size=2, shuffle=False)
    loader.files[0].unlink()
    with expect_error("ag_image_folder: a file that is gone", ValueError, str(loader.files[0]), "No such file"):
        loader.next_batch()
    loader.files[0].touch()
    monkeypatch.setattr(Image, "open", lambda *_, **__: (_ for _ in ()).throw(struct.error("unpack requires 4 bytes")))
    with expect_error("a file that Pillow stumbles over", ValueError, str(loader.files[0]), "unpack"):
        loader.next_batch()


@pytest.mark.parametrize("content", [
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n%%EndComments\n", b"P5\n# no size"])
def test_no_program_runs_for_an_image(folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would run Ghostscript for PostScript, whatever the file is called."""
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("a program was started"))
    loader = ag.ag_image_folder(folder, size=2, shuffle=False)
    loader.files[0].write_bytes(content)
    with expect_error("no image", ValueError, str(loader.files[0]), "cannot be decoded"):
        loader.next_batch()


def test_a_pipe_is_not_waited_for_and_a_small_file_cannot_fill_the_memory(folder: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    loader = ag.ag_image_folder(folder, size=2, shuffle=False)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with expect_error("too large", ValueError, str(loader.files[0]), "6 x 4 pixels", "MAX_IMAGE_PIXELS"), \
            pytest.warns(Image.DecompressionBombWarning):
        loader.next_batch()
    loader.files[0].unlink()
    os.mkfifo(loader.files[0])
    with expect_error("a pipe", ValueError, str(loader.files[0]), "no regular file"):
        loader.next_batch()


def test_a_relative_folder_stays_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    loader = ag.ag_image_folder(folder.name, size=2, shuffle=False)
    monkeypatch.chdir("/")
    assert len(loader.next_batch().y) == 12


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


def test_an_image_is_decoded_when_its_batch_is_due(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    real = Image.open
    monkeypatch.setattr(Image, "open", lambda file, formats: opened.append(Path(file)) or real(file))
    loader = ag.ag_image_folder(folder, size=2, batch_size=5, seed=1, prefetch=1)
    loader.load_state_dict({**loader.state_dict(), "next": 1})
    assert opened == []
    due = [loader.files[k] for k in loader.order[5:]]
    assert len(samples(loader)) == 7 and opened == due


def test_folders_that_will_not_do(folder: Path, tmp_path: Path) -> None:
    with expect_error("ag_image_folder: a file", FileNotFoundError, "ag_image_folder: ", "is a file"):
        ag.ag_image_folder(__file__, 4)
    with expect_error("ag_image_folder: no such folder", FileNotFoundError, "nowhere", "is not there"):
        ag.ag_image_folder(tmp_path / "nowhere", size=2)
    with expect_error("ag_image_folder: no class folders", ValueError, "ant", "holds no folders"):
        ag.ag_image_folder(folder / "ant", size=2)
    (folder / "dog").mkdir()
    with expect_error("ag_image_folder: a class without images", ValueError, "dog", "holds no images"):
        ag.ag_image_folder(folder, size=2)


@pytest.mark.parametrize("size", [0, (2,), (2, -1), (2, 2, 2), 1.5, "22", True, (2, False), (2.0, 2)])
def test_a_size_that_is_none(folder: Path, size: Any) -> None:
    with expect_error("ag_image_folder: size", ValueError, "ag_image_folder: size is", repr(size)):
        ag.ag_image_folder(folder, size=size)


def test_numbers_out_of_range(folder: Path) -> None:
    with expect_error("ag_image_folder: batch_size", ValueError, "ag_image_folder: batch_size is 0"):
        ag.ag_image_folder(folder, size=2, batch_size=0)


def test_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with expect_error("ag_image_folder: Pillow is not installed", ImportError, "pip install 'ag-autograd[images]'"):
        ag.ag_image_folder(folder, size=2)


def photo(tmp_path: Path, mode: str = "RGB") -> np.ndarray:
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 3), np.uint8)
    (tmp_path / "one").mkdir()
    image = Image.fromarray(pixels)
    (image if mode == "RGB" else Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257)).save(
        tmp_path / "one" / "1.png")
    return pixels


def test_transform_is_given_the_decoded_image(tmp_path: Path) -> None:
    pixels, given = photo(tmp_path), list[np.ndarray]()

    def turned(image: np.ndarray) -> np.ndarray:
        given.append(image.copy())
        image[:] = 0  # it is its own
        return np.ascontiguousarray(pixels[:, ::-1])

    found = ag.ag_image_folder(tmp_path, size=(5, 7), transform=turned).next_batch().x.numpy()[..., 0]
    assert given[0].dtype == np.uint8 and np.array_equal(given[0], pixels)
    np.testing.assert_array_equal(found, pixels[:, ::-1].transpose(2, 0, 1).astype(np.float32) / np.float32(255))
    # what it returns is resized, cut and normalised as a decoded image would be
    options: dict[str, Any] = {"size": 3, "shorter_side": 4, "normalize": ((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))}
    same = ag.ag_image_folder(tmp_path, transform=lambda image: image, **options).next_batch().x.numpy()
    np.testing.assert_array_equal(same, ag.ag_image_folder(tmp_path, **options).next_batch().x.numpy())


def test_transform_may_return_floats_of_the_size(tmp_path: Path) -> None:
    photo(tmp_path)
    floats = np.random.default_rng(0).normal(size=(4, 2, 3))
    loader = ag.ag_image_folder(tmp_path, size=(4, 2), transform=lambda image: floats)
    np.testing.assert_array_equal(loader.next_batch().x.numpy()[..., 0], floats.astype(np.float32).transpose(2, 0, 1))


def test_transform_of_images_with_more_bits(tmp_path: Path) -> None:
    photo(tmp_path, "I;16")
    seen: list[np.ndarray] = []
    loader = ag.ag_image_folder(tmp_path, size=(5, 7), transform=lambda image: seen.append(image) or image)
    np.testing.assert_array_equal(loader.next_batch().x.numpy(), ag.ag_image_folder(
        tmp_path, size=(5, 7)).next_batch().x.numpy())
    assert seen[0].shape == (5, 7, 3) and seen[0].dtype == np.float32


@pytest.mark.parametrize(("returned", "said"), [
    (None, "a NoneType"), (np.zeros((5, 7), np.uint8), "shape (5, 7) and type uint8"),
    (np.zeros((3, 3, 3), np.float32), "shape (3, 3, 3) and type float32"), (np.zeros((5, 7, 4), np.uint8), "(5, 7, 4)"),
    (np.zeros((5, 7, 3), np.int64), "type int64"), (np.zeros((0, 7, 3), np.uint8), "(0, 7, 3)"),
    ({"image": 1}, "a dict")])
def test_what_transform_must_return(returned: Any, said: str, tmp_path: Path) -> None:
    photo(tmp_path)
    loader = ag.ag_image_folder(tmp_path, size=(5, 7), transform=lambda image: returned)
    with expect_error(said, ValueError, "transform returned", said, "1.png", "(5, 7, 3) of floats"):
        loader.next_batch()


def test_an_error_of_transform_is_its_own(tmp_path: Path) -> None:
    photo(tmp_path)

    def fails(image: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as error:
        ag.ag_image_folder(tmp_path, size=4, transform=fails).next_batch()
    assert sys.version_info < (3, 11) or "1.png" in error.value.__notes__[0]
    with expect_error("no function", TypeError, "transform is a str"):
        ag.ag_image_folder(tmp_path, size=4, transform="flip")
