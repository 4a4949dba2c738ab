"""Model parallelism: layers one after the other, each on its device, for models that are too large for one.

Automatic placement cuts where the fullest device has most room left.  Layers of 4, 4, 2, 6 GB on 8 and 16 GB:

    4 | 4 2 6    the devices are 50 % and 75 % full   <- chosen
    4 4 | 2 6                   100 % and 50 %
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from ag.autograd.tape import no_grad, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree
from ag.engine.device import ag_device, backend_of, default_devices
from ag.errors import ArenaError
from ag.nn.layer import Layer, state_of
from ag.nn.sequential import Sequential
from ag.ops.convert import ag_to_device
from ag.parallel.comm.tensor_collectives import moved

__all__ = ["ModelParallel"]

Layers = Sequence[Layer] | Mapping[str, Layer] | Sequential
DeviceMap = str | Sequence[str] | Mapping[str | int, str]

_COPIES = 4  # of a parameter: its values, its gradient, and two moments of Adam


class ModelParallel(Layer):
    """Layers one after the other on several devices, for models that are too large for one.

    Parameters
    ----------
    layers : sequence of Layer, dict of str to Layer, or ag_sequential
        Moved to their devices.  A layer may return a tuple of tensors, which the next one gets as arguments.
    device_map : sequence of str, dict, or "auto", optional
        The device of each layer; in a dict, by the layer's name or its number, a layer that is not named being where
        the one before is.  "auto" measures what the layers need and what the devices have.
    devices : sequence of str, optional
        For "auto": which to use, in order; default: the device that `ag_device` was given, else every card.
    budgets : dict of str to int, optional
        For "auto": how many bytes may be used of a device; default: what is free.
    sample : Tensor, or tuple of them, optional
        For "auto": a batch, so that the memory of what layers keep for the backward pass is counted, too.

    Raises
    ------
    ValueError, TypeError
        If there is no layer, or `device_map` does not give each layer, and no other, a device.
    ArenaError
        If the layers do not fit, with the bytes that are needed and the bytes that are free.

    Notes
    -----
    Only one device works at a time; `Pipeline` keeps all busy.  Parameters, gradients and two moments are counted.

    Reference: ML Odyssey ``ModelParallel``; Hugging Face Accelerate ``device_map="auto"``.

    Examples
    --------
    >>> import ag
    >>> model = ag.ModelParallel([ag.ag_linear(2, 3), ag.ag_linear(3, 1)], ["cpu", "cpu:1"])
    >>> model.devices, model(ag.ag_tensor([[1.0], [2.0]])).device
    (['cpu', 'cpu:1'], 'cpu:1')
    """

    def __init__(self, layers: Layers, device_map: DeviceMap = "auto", devices: Sequence[str] | None = None,
                 budgets: Mapping[str, int] | None = None, sample: Tree = None) -> None:
        named = _named(layers)
        self.layers = list(named.values())
        if isinstance(device_map, str):
            if device_map != "auto":
                raise ValueError(f"ModelParallel: device_map is {device_map!r}; it must be 'auto', or give each layer "
                                 f"a device.")
            self.devices = _automatic(self.layers, devices, budgets, sample)
        else:
            self.devices = _mapped(list(named), device_map)
        for layer, device in zip(self.layers, self.devices, strict=True):
            layer.to(device)

    def children(self) -> dict[str, Layer]:
        """Layers by name: ``layer1``, ``layer2``, …"""
        return {f"layer{i}": layer for i, layer in enumerate(self.layers, 1)}

    def replace_devices(self, instead: Mapping[str, str]) -> None:
        """Replace failed devices."""
        self.devices = [instead.get(name, name) for name in self.devices]

    def forward(self, *x: Tree) -> Tree:
        """Return the last layer's output, on its device."""
        out: Tree = x
        for layer, device in zip(self.layers, self.devices, strict=True):
            held = next(iter(state_of(layer).values()), None)
            here = device if held is None else held.device  # elsewhere in a replica
            with ag_device(here):
                out = layer(*moved(out if isinstance(out, tuple) else (out,), here))
        return out


def _named(layers: Layers) -> dict[str, Layer]:
    if isinstance(layers, Sequential):
        layers = list(layers)
    named = dict(layers) if isinstance(layers, Mapping) else {str(i): layer for i, layer in enumerate(layers)}
    if not named:
        raise ValueError("ModelParallel: layers is empty; at least one layer is required.")
    device = next((layer for layer in named.values() if isinstance(layer, str)), None)
    if device is not None:
        raise TypeError(f"ModelParallel: {device!r} is among the layers; layers come first and their devices second, "
                        f"as in ModelParallel(layers, device_map).")
    return named


def _mapped(names: list[str], device_map: Sequence[str] | Mapping[str | int, str]) -> list[str]:
    if not isinstance(device_map, Mapping):
        if len(device_map) != len(names):
            raise ValueError(f"ModelParallel: device_map has {len(device_map)} devices for {len(names)} layers; give "
                             f"one for each.")
        return [backend_of(device).name for device in device_map]
    mapped = {str(name): device for name, device in device_map.items()}
    unknown = [name for name in mapped if name not in names]
    if unknown or names[0] not in mapped:
        what = f"names {', '.join(unknown)}" if unknown else f"leaves out the first layer, {names[0]}"
        raise ValueError(f"ModelParallel: device_map {what}; the layers are {', '.join(names)}; it has the device of "
                         f"each layer, as in {{{names[0]!r}: 'cpu'}}.")
    devices: list[str] = []
    for name in names:
        devices.append(backend_of(mapped[name]).name if name in mapped else devices[-1])
    return devices


def _automatic(layers: list[Layer], devices: Sequence[str] | None, budgets: Mapping[str, int] | None,
               sample: Tree) -> list[str]:
    names = [backend_of(device).name for device in devices or default_devices()]
    for layer in layers:
        layer.to("cpu")
    needs = [need.total for need in measured(layers, sample, _COPIES)]
    return [names[i] for i in place(needs, free_bytes(names, budgets), names)]


class LayerNeed(NamedTuple):
    """Bytes that a layer needs: `state` for parameters, gradients and moments; `activations` for the backward pass."""

    state: int
    activations: int

    @property
    def total(self) -> int:
        return self.state + self.activations


def measured(layers: Sequence[Layer], sample: Tree, copies: int) -> list[LayerNeed]:
    """Return what layers on the CPU need: `copies` of each parameter, and the activations of `sample`, if given."""
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
    """Return the free memory of each device, at most its budget."""
    free_of = []
    for name in devices:
        backend = backend_of(name)
        free = backend.info.memory_bytes - backend.arena.stats().reserved
        free_of.append(free if budgets is None else min(free, budgets.get(name, free)))
    return free_of


def place(needs: Sequence[int], free: Sequence[int], devices: Sequence[str]) -> list[int]:
    """Return the number of each layer's device; an ArenaError says what does not fit."""
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
