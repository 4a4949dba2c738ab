"""A trial of each kind of tiles on a card, before the first product is made in it: what comes out wrong is not used.

A driver that mistakes one of the constants by which a pipeline chooses its sizes writes outside of shared memory, or
leaves parts of the result out, and says nothing.  MoltenVK before 1.3 did so on every Apple device, and the next one
will not be on a list.  So a product of whole numbers is made in each kind as a device of a new driver is opened:
130 x 36 times 36 x 100 numbers from -8 to 8 add up to less than 2^24, hence exactly in any order, and one wrong bit
tells.  What came out is kept with the measured choices, for this product, driver and set of kernels.

Software drivers are not tried: the tests of this library run on them.  Knows kinds of tiles by name and one primitive;
nothing of what products are for.  `ag.engine.backends.vulkan.backend` calls it, and `examination`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ag.engine.backends.vulkan.products.autotune import TunedBackend, choices_for
from ag.engine.backends.vulkan.products.tiles import Tiles
from ag.engine.dtype import F32
from ag.engine.kernels.matmul import matmul
from ag.errors import KernelError
from ag.log import log

__all__ = ["tried", "wrong_now"]

_ROWS, _INNER, _COLS = 130, 36, 100  # more than a tile of any kind has, and no multiple of one
_RIGHT, _WRONG = "right", "wrong"
_SKINNY = "V"


def tried(backend: TunedBackend, usual: Tiles) -> Tiles:
    """The rule without the kinds of tiles whose products are wrong on this device.

    Parameters
    ----------
    backend : VulkanBackend
        Opened as far as launches go.
    usual : Tiles
        What the table says.

    Raises
    ------
    KernelError
        If no kind is right, or the one is not that AG_MATMUL_TILE names.
    """
    if backend.info.kind == "cpu":
        return usual
    wrong = [kind for kind, rule in _kinds(usual) if _verdict(backend, kind, rule) == _WRONG]
    if not wrong:
        return usual
    where = f"{backend.info.name} ({backend.info.description}, driver {backend.info.driver})"
    log.warning("%s: a product in tiles of kind %s came out wrong in a trial, so they are not used; a newer driver may "
                "mend that.", where, ", ".join(wrong))
    rates = tuple((kind, rate) for kind, rate in usual.rates if kind not in wrong)
    if usual.forced in wrong:
        raise KernelError(f"Vulkan: a product in tiles of kind {usual.forced}, which AG_MATMUL_TILE names, comes out "
                          f"wrong on {where}; unset it, or use another driver.")
    if usual.fixed or not rates:
        if usual.fixed or _verdict(backend, "fixed", replace(usual, fixed=True)) == _WRONG:
            raise KernelError(f"Vulkan: products of matrices come out wrong in all kinds of tiles on {where}; install "
                              f"a newer driver, or use the device 'cpu'.")
        return replace(usual, fixed=True)
    return replace(usual, rates=rates, skinny=usual.skinny and _SKINNY not in wrong)


def wrong_now(backend: TunedBackend, rule: Tiles) -> list[str]:
    """The kinds of tiles of a rule in which a product comes out wrong at this moment, whatever was kept."""
    return [kind for kind, only in _kinds(rule) if not _is_right(backend, only)]


def _kinds(usual: Tiles) -> Iterator[tuple[str, Tiles]]:
    """The kinds that a rule may choose, and a rule that takes nothing else."""
    if usual.fixed:
        yield "fixed", usual
        return
    names = [usual.forced] if usual.forced else [kind for kind, _ in usual.rates] + [_SKINNY] * usual.skinny
    for kind in names:
        yield kind, replace(usual, forced=kind)


def _verdict(backend: TunedBackend, kind: str, rule: Tiles) -> str:
    """Whether a product in one kind of tiles is right; kept, so that it is made once per driver."""
    choices, name = choices_for(backend.info), f"trial {kind}"
    with choices.lock:
        known = choices.get(name)
        if known not in (_RIGHT, _WRONG):
            known = choices.keep(name, _RIGHT if _is_right(backend, rule) else _WRONG, (_RIGHT, _WRONG))
    return known


def _is_right(backend: TunedBackend, rule: Tiles) -> bool:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, shape).astype(np.float32) for shape in ((_ROWS, _INNER), (_INNER, _COLS)))
    arrays = np.full((_ROWS, _COLS), np.nan, np.float32), a, b
    buffers = tuple(backend.alloc(x.shape, F32) for x in arrays)
    for x, buffer in zip(arrays, buffers, strict=True):
        backend.upload(x, buffer)
    command = backend.command(matmul, buffers, {"ta": False, "tb": False}, rule)
    assert command is not None  # as there are elements
    backend.recorder.record(command._replace(kernel=""))  # so that a profile does not list it
    found = backend.transfers.download(buffers[0].address, buffers[0].size).view(np.float32)
    return bool(np.array_equal(found.reshape(_ROWS, _COLS), a @ b))
