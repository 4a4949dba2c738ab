"""Programs that people train learn in a few steps; as a user runs them, they reach what they promise, in 80 lines."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
# Steps of the quick test, by how much the loss must fall in them, and the line that a whole run prints.
LEARNING = {
    "gpt": (8, 0.95, r"loss per character: 4\.\d+ at first, 1\.\d+ after 1000 steps"),
    "vae": (60, 0.8, r"loss per image: 4\d\.\d+ at first, 2\d\.\d+ after 3000 steps"),
    "dcgan": (60, 0.9, r"distance of drawn digits from handwritten ones: 10\.\d+ at first, [1-4]\.\d+ after training"),
    "ddpm": (12, 0.9, r"loss: \d\.\d+ at first, 0\.1\d+ after 1500 steps"),
    "vit": (20, 0.9, r"accuracy on 360 digits held out: 0\.9\d+"),
    "gcn": (30, 0.7, r"accuracy on 300 members, of which it was told 16: 0\.[89]\d+"),
    "simclr": (20, 0.97, r"nearest neighbours of moved digits are the same: 0\.3\d+ at first, 0\.6\d+ after training"),
    "siren": (20, 0.5, r"\d+\.\d dB in four times as many pixels"),
    "seq2seq": (20, 0.8, r"9\d% of 200 words held out are right, such as worht, "),
    "word2vec": (60, 0.8, r"father   .*\bbrother"),
}


@pytest.mark.parametrize("name", LEARNING)
def test_a_few_steps_teach_something(name: str) -> None:
    steps, fall, _ = LEARNING[name]
    _, losses = import_module(f"examples.{name}").train(steps)
    assert np.isfinite(losses).all() and np.mean(losses[-3:] if name != "dcgan" else losses[1]) < fall * losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_a_program_reaches_what_it_promises(name: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", f"{name}.py"], cwd=EXAMPLES, capture_output=True, text=True,
                          timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{LEARNING[name][2]}", done.stdout, re.M), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_a_program_that_learns_too_little_fails(name: str) -> None:
    done = subprocess.run([sys.executable, f"{name}.py", "1"], cwd=EXAMPLES, capture_output=True, text=True,
                          timeout=600, check=False)
    assert done.returncode == 1 and re.fullmatch(r"FAILED: .*\n", done.stderr), done.stderr


def test_a_gpt_with_its_cache_writes_what_it_would_write_without() -> None:
    from ag import nn

    gpt = import_module("examples.gpt")
    model, ids = gpt.GPT(), np.arange(24).reshape(12, 2)
    cache = nn.StaticCache(gpt.LAYERS, gpt.WIDTH, gpt.CONTEXT, batch=2)
    parts = [model(ids[begin:end], cache).numpy() for begin, end in ((0, 5), (5, 6), (6, 12))]
    np.testing.assert_allclose(np.concatenate(parts, 1), model(ids).numpy(), rtol=1e-4, atol=1e-5)
    assert len(gpt.write(model, "ROSALIND. ")) == gpt.CONTEXT + 1


@pytest.mark.parametrize("name", LEARNING)
def test_a_program_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()) <= 80
