"""Chains round as their parts do: a chain has the bits of the launches that it stands for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ag
import ag.engine.backends.shader
from ag.engine.device import backend_of
from ag.engine.dtype import F32
from ag.engine.kernels.elementwise import Chain, fused
from ag.engine.primitive import PRIMITIVES

SPV = Path(ag.engine.backends.shader.__file__).parent / "spv"
DECORATE, NO_CONTRACTION = 71, 42
ARITHMETIC = {127, 129, 131, 133, 136, 140, 141, 142, 148}  # FNegate, FAdd, FSub, FMul, FDiv, FRem, FMod, ...
FUSABLE = sorted(name for name, p in PRIMITIVES.items() if p.fusable)


@pytest.mark.skipif(not (SPV / "fused.spv").is_file(), reason="the kernels were not compiled")
def test_all_arithmetic_is_precise() -> None:
    """A driver may contract or reorder what is not, and does so otherwise where it sees more functions at once."""
    for name in (*FUSABLE, "fused", "fused_pair"):
        words = np.fromfile(SPV / f"{name}.spv", np.uint32).tolist()
        at, precise, arithmetic = 5, set(), set()
        while at < len(words):
            operation, length = words[at] & 0xFFFF, words[at] >> 16
            if operation == DECORATE and words[at + 2] == NO_CONTRACTION:
                precise.add(words[at + 1])
            if operation in ARITHMETIC:
                arithmetic.add(words[at + 2])
            at += length
        assert arithmetic <= precise, name


CHAINS: dict[str, Chain] = {
    "sigmoid and its gradient": (("sigmoid", 0, 0, 0.0), ("sigmoid_grad", 4, 1, 0.0)),
    "scaled": (("sigmoid", 0, 0, 0.0), ("scale", 4, 4, 0.5), ("add", 1, 5, 0.0), ("sigmoid_grad", 4, 6, 0.0)),
    "tanh and its gradient": (("tanh", 0, 0, 0.0), ("tanh_grad", 4, 1, 0.0), ("mul", 5, 5, 0.0)),
    "gelu and its gradient": (("gelu", 0, 0, 0.0), ("gelu_grad", 0, 1, 0.0), ("add", 4, 5, 0.0)),
    "product and sum": (("mul", 0, 1, 0.0), ("add", 4, 2, 0.0), ("sub", 5, 0, 0.0), ("div", 6, 3, 0.0)),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_chain_has_the_bits_of_its_parts(device: str, chain: Chain) -> None:
    backend, rng = backend_of(device), np.random.default_rng(0)
    registers = [backend.alloc((4096,), F32) for _ in range(4)]
    for x in registers:
        backend.upload(rng.standard_normal(4096) * rng.choice([1, 10, 1e-4], 4096), x)
    made = backend.download(backend.launch(fused, *registers, chain=chain))
    for name, x, y, value in chain:
        rule = PRIMITIVES[name]
        operands = [registers[x], registers[y]][: len(rule.operands) - 1]
        registers.append(backend.launch(rule, *operands, **({rule.params[0]: value} if rule.params else {})))
    assert made.tobytes() == backend.download(registers[-1]).tobytes()


def test_zeros_of_either_sign_are_not_the_same_launch(device: str) -> None:
    """They are equal as parameters, and as numbers of a chain: twice each, as launches are looked up."""
    backend = backend_of(device)
    x = backend.alloc((4,), F32)
    backend.upload(np.array([-2, -1, 1, 2], np.float32), x)
    for _ in range(2):
        for zero in (0.0, -0.0):
            want = np.signbit(np.float32([-2, -1, 1, 2]) * np.float32(zero))
            alone = backend.launch(PRIMITIVES["scale"], x, factor=zero)
            chained = backend.launch(fused, x, x, x, x, chain=(("scale", 0, 0, zero), ("scale", 4, 4, 1.0)))
            for found in (alone, chained):
                assert np.array_equal(np.signbit(backend.download(found)), want)
            with ag.ag_device(device):
                sloped = ag.ag_leaky_relu(ag.ag_tensor([[-1.0, 1.0]]), zero).numpy()
            assert np.signbit(sloped).tolist() == [[not np.signbit(zero), False]]
