"""Automatic placement: which of a model's layers go to which device, by the memory they need and the devices have.

Layers stay in order, and everything goes to the first device if it fits there.  Otherwise cuts are made where the
fullest device has most room left, in proportion.  Layers of 4, 4, 2 and 6 GB on devices with 8 and 16 GB:

    4 | 4 2 6    the devices are 50 % and 75 % full   <- chosen
    4 4 | 2 6                   100 % and 50 %

Knows layers' sizes and devices' memory; nothing of what runs there.  `ModelParallel` calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ag.autograd.tape import no_grad, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.engine.device import ag_device, backend_of
from ag.errors import ArenaError
from ag.nn.layer import Layer, state_of
from ag.ops.convert import ag_to_device
from ag.parallel.comm.tree import Tree

__all__ = ["LayerNeed", "free_bytes", "measured", "place"]


@dataclass(frozen=True)
class LayerNeed:
    """Bytes that a layer needs: `state` for parameters, gradients and moments, `activations` for the backward pass."""

    state: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.state + self.activations


def measured(layers: Sequence[Layer], sample: Tree, copies: int) -> list[LayerNeed]:
    """What each layer needs to be trained: `copies` of each parameter, and the activations of a batch like `sample`.

    The batch is passed through the model on the CPU, and the memory it takes is counted there; without a sample only
    parameters count.  The layers must be on the CPU.
    """
    states = [sum(t.buffer.nbytes * (copies if t.requires_grad else 1) for t in state_of(layer).values())
              for layer in layers]
    if sample is None:
        return [LayerNeed(state, 0) for state in states]
    arena, needs = backend_of("cpu").arena, []
    with ag_device("cpu"), with_grad_tape():
        x = sample if isinstance(sample, tuple) else (sample,)
        with no_grad():
            x = tuple(Tensor(ag_to_device(t, "cpu").buffer, True) if isinstance(t, Tensor) else t for t in x)
        results = []
        for layer, state in zip(layers, states, strict=True):
            before = arena.stats().live
            out = layer(*x)
            needs.append(LayerNeed(state, arena.stats().live - before))
            x = out if isinstance(out, tuple) else (out,)
            results.append(x)  # as the backward pass would
    return needs


def free_bytes(devices: Sequence[str], budgets: Mapping[str, int] | None) -> list[int]:
    """The memory of each device that is not in use, or what `budgets` allows."""
    free_of = []
    for name in devices:
        backend = backend_of(name)
        free = backend.info.memory_bytes - backend.arena.stats().reserved
        free_of.append(free if budgets is None else min(free, budgets.get(name, free)))
    return free_of


def place(needs: Sequence[int], free: Sequence[int], devices: Sequence[str]) -> list[int]:
    """The number of the device of each layer, from the bytes that each needs and the bytes that are free.

    Raises
    ------
    ArenaError
        If the layers do not fit, with the bytes that are needed and the bytes that are free.
    """
    if sum(needs) <= free[0]:
        return [0] * len(needs)
    starts = [0, *accumulate(needs)]
    # Dynamic programming: with n layers on the devices so far, how full the fullest is, and how many layers each has.
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for room in free:
        longer: dict[int, tuple[float, list[int]]] = {}
        for begin, (fullest, counts) in best.items():
            for end in range(begin, len(needs) + 1):
                load = starts[end] - starts[begin]
                if load > room:
                    break
                fill = max(fullest, load / max(1, room)), [*counts, end - begin]
                longer[end] = min(longer.get(end, fill), fill)
        best = longer
    if len(needs) not in best:
        rooms = ", ".join(f"{room:,} on {device}" for device, room in zip(devices, free, strict=True))
        raise ArenaError(f"ModelParallel: the layers need {sum(needs):,} bytes, the largest {max(needs):,}; there are "
                         f"{rooms}. Give more devices, cut layers up, or use smaller batches.")
    return [device for device, count in enumerate(best[len(needs)][1]) for _ in range(count)]
