"""Random numbers: the published bits, the same ones on every device, and dropout made of them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.errors import expect_error
from table.oracles import SEED, philox_block, uniform
from table.rows import restart_generator

import ag
from ag.engine.device import backend_of
from ag.engine.kernels.random import philox, uniform_from_bits
from ag.engine.random import draw_key, host_seed, host_uniform, set_stream

# kat_vectors of the Random123 distribution, philox4x32 with 10 rounds: counter, key, result
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(w, 16) for w in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_the_oracle_gives_the_published_bits(counter: str, key: str, result: str) -> None:
    assert philox_block(words(counter), words(key)) == words(result)


@pytest.mark.parametrize("key", [(0, 0), (0xFFFFFFFF, 0xFFFFFFFF), (0xA4093822, 0x299F31D0)])
@pytest.mark.parametrize("stream", [(0, 0), (0xFFFFFFFF, 0xFFFFFFFF), (0x13198A2E, 0x03707344)])
def test_the_generator_is_the_oracle(key: tuple[int, int], stream: tuple[int, int]) -> None:
    blocks = [philox_block((i, 0, *stream), key) for i in range(5)]
    assert philox(key, stream, 18).tolist() == [w for block in blocks for w in block][:18]
    assert philox(key, stream, 18).dtype == np.uint32


def test_uniform_numbers_lie_in_the_half_open_interval() -> None:
    ends = uniform_from_bits(np.array([0, 0xFFFFFFFF], np.uint32))
    assert ends.tolist() == [0, 1 - 2.0**-24]


# ---------------------------------------------------------------------------------------------- devices


def test_every_draw_takes_the_next_stream(device: str) -> None:
    backend = backend_of(device)
    restart_generator(backend)
    keys = [backend.download(draw_key(backend)).tolist() for _ in range(3)]
    assert keys == [[SEED, 0, stream, 0] for stream in range(3)]
    set_stream(backend, 0xFFFFFFFF)
    keys = [backend.download(draw_key(backend)).tolist() for _ in range(2)]
    assert keys == [[SEED, 0, 0xFFFFFFFF, 0], [SEED, 0, 0, 1]]  # the low word carries


def kept(x: ag.Tensor) -> list[bool]:
    """Return for each element whether dropout left it."""
    return (x.numpy() != 0).ravel().tolist()


@pytest.mark.parametrize("size", [1, 7, 257, 4099])
def test_the_mask_is_the_same_on_every_device(device: str, size: int) -> None:
    layer, ones = ag.ag_dropout(0.4), ag.ag_tensor(np.ones(size))
    restart_generator(backend_of(device))
    for stream in range(3):
        assert kept(layer(ones)) == (uniform(size, stream) >= np.float32(0.4)).tolist()


def test_seeds_of_64_bits(device: str) -> None:
    layer, ones = ag.ag_dropout(0.5), ag.ag_tensor(np.ones(64))
    ag.ag_seed(0x123456789ABCDEF0)
    bits = philox((0x9ABCDEF0, 0x12345678), (0, 0), 64)
    assert kept(layer(ones)) == (uniform_from_bits(bits) >= 0.5).tolist()


def test_initial_weights_are_reproducible(device: str) -> None:
    def weights(seed: int) -> bytes:
        ag.ag_seed(seed)
        return b"".join(ag.ag_linear(5, 3).W.numpy().tobytes() for _ in range(2))

    assert weights(1) == weights(1)
    assert weights(1) != weights(2)
    with ag.ag_device("cpu"):
        cpu = weights(1)
    assert weights(1) == cpu


def test_host_numbers() -> None:
    ag.ag_seed(3)
    x = host_uniform((1000,), -0.5, 0.5)
    assert x.dtype == np.float32
    assert -0.5 <= x.min() < -0.49 < 0.49 < x.max() < 0.5
    seeds = {host_seed() for _ in range(10)}
    assert len(seeds) == 10
    assert not np.array_equal(x, host_uniform((1000,), -0.5, 0.5))


# ---------------------------------------------------------------------------------------------- dropout


def test_eval_mode_drops_nothing(device: str) -> None:
    x = ag.ag_tensor(np.ones(10))
    layer = ag.ag_eval(ag.ag_dropout(0.5))
    assert layer(x) is x


def test_a_captured_step_draws_anew_on_every_replay(device: str) -> None:
    layer, x = ag.ag_dropout(0.5), ag.ag_tensor(np.ones((3, 100)))
    p = ag.ag_param(np.zeros((3, 100)))

    def step(x: ag.Tensor) -> tuple[ag.Tensor, ag.Tensor]:
        with ag.with_grad_tape():
            y = layer(x + p)
            loss = ag.ag_sum(y)
        return y, ag.backward(loss)[p]

    def masks(step: object) -> list[bytes]:
        restart_generator(backend_of(device))
        found = []
        for _ in range(4):
            y, g = step(x)  # type: ignore[operator]
            np.testing.assert_array_equal(y.numpy(), g.numpy())
            found.append(y.numpy().tobytes())
        return found

    eager, captured = masks(step), masks(ag.ag_capture(step))
    assert captured == eager
    assert len(set(eager)) == 4


def test_seeding_between_replays_takes_effect(device: str) -> None:
    layer, x = ag.ag_dropout(0.5), ag.ag_tensor(np.ones(100))
    step = ag.ag_capture(lambda x: layer(x))
    restart_generator(backend_of(device))
    first = step(x).numpy().tobytes()
    second = step(x).numpy().tobytes()
    ag.ag_seed(SEED)
    assert step(x).numpy().tobytes() == first != second


@pytest.mark.parametrize("seed", [1.5, "1", None, np.ones(2)])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with expect_error(f"the seed {seed!r}", TypeError, "ag_seed", type(seed).__name__, "whole number"):
        ag.ag_seed(seed)
    ag.ag_seed(np.int64(3))
