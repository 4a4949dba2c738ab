"""CompressedDataParallel: a DataParallel whose replicas send short messages instead of their gradients.

Only the node between the module's parameter and a replica's copy is another one: forward it is a copy, backward what
arrives over a `Link`.  Everything else is `DataParallel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ag.buffer import Buffer
from ag.create import ag_tensor
from ag.dtype import F16, F32
from ag.half import converted
from ag.loss_scale import scaled, unscaled
from ag.op import Cotangents, Need, Run
from ag.ops.convert import ag_to_device
from ag.parallel.compression import WIRES, Link, message_bytes, take_residuals
from ag.parallel.data_parallel import DataParallel, Device
from ag.parallel.replicate import replicas_of
from ag.tape import is_recording, no_grad
from ag.tensor import Array, Node, Tensor

__all__ = ["CompressedDataParallel"]


class _Links:
    """One link per replica; no list, as that would be the layer's state."""

    def __init__(self, links: list[Link]) -> None:
        self.all = links


class CompressedDataParallel(DataParallel):
    """A `DataParallel` whose replicas send the largest elements of their gradients only.

    Parameters
    ----------
    model : Layer, or any callable with ``parameters()``
        As for `DataParallel`.
    device_ids : sequence of str or int, or of sequences of these, optional
        As for `DataParallel`.
    compression_ratio : float, optional
        Which part of each parameter's gradient a replica sends, in (0, 1]; at least one element.
    wire : {"f32", "f16", "bf16"}, optional
        Type in which values are sent.
    output_device : str or int, optional
        As for `DataParallel`.
    dim : int, optional
        As for `DataParallel`.

    Raises
    ------
    ValueError
        If the ratio or the wire format is not one of these, or `device_ids` is empty.
    DeviceError
        If a device is not there.

    Notes
    -----
    What a replica does not send, it adds to its next gradient (error feedback), so every element arrives in the end.
    All replicas do so, those on the module's own device too: results do not depend on where they are.  Where a
    message were no shorter than the whole gradient, that is sent; with ratio 1 in f32 no gradient changes.
    The lower the ratio, the later elements come, and what remembers gradients suffers: on digits, SGD reaches the
    uncompressed loss in 1.1 times the steps with a ratio of 0.01, momentum in 1.4 times, and Adam needs 1.2 times with
    0.2 and does not get there in twice the steps with 0.02.  Save ``compressor_state()`` with a checkpoint.

    References
    ----------
    Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", 2018; Lin et al., "Deep Gradient Compression", 2018.

    Examples
    --------
    >>> import ag
    >>> model = ag.CompressedDataParallel(ag.ag_linear(2, 2, bias=False), ["cpu", "cpu:1"], compression_ratio=0.25)
    >>> with ag.with_grad_tape():
    ...     loss = ag.ag_sum(model(ag.ag_tensor([[1.0, 1.0], [0.0, 3.0]])))
    >>> [n for n in ag.backward(loss)[model.module.W].numpy().ravel().tolist() if n]
    [1.0, 3.0]
    >>> model.bytes_sent, model.bytes_per_step
    (16, 16)
    """

    def __init__(self, model: Any, device_ids: Sequence[Device | Sequence[Device]] | None = None,
                 compression_ratio: float = 0.01, wire: str = "f32", output_device: Device | None = None,
                 dim: int = -1) -> None:
        super().__init__(model, device_ids, output_device, dim)
        if not 0 < compression_ratio <= 1:
            raise ValueError(f"CompressedDataParallel: compression_ratio is {compression_ratio}; it must be in (0, 1].")
        if wire not in WIRES:
            raise ValueError(f"CompressedDataParallel: wire is {wire!r}; use one of {', '.join(WIRES)}.")
        self.compression_ratio, self.wire = compression_ratio, wire
        self._links = _Links([Link(compression_ratio, WIRES[wire]) for _ in self.device_ids])

    @property
    def bytes_sent(self) -> int:
        """Bytes of all gradients that replicas have sent so far."""
        return sum(link.sent for link in self._links.all)

    @property
    def bytes_per_step(self) -> int:
        """Bytes that all replicas together send in a backward pass in which every one has samples."""
        sizes = [p.size for p in self.parameters().values()]
        return len(self._links.all) * sum(message_bytes(n, self.compression_ratio, WIRES[self.wire]) for n in sizes)

    def compressor_state(self) -> dict[str, Array]:
        """What replicas have not sent yet: residuals by replica and parameter."""
        return {f"residual{i}.{name}": residual.copy() for i, link in enumerate(self._links.all)
                for name, residual in link.residuals.items()}

    def load_compressor_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `compressor_state` returned; nothing changes if it does not fit.

        Raises
        ------
        CheckpointError
            Listing the names that are unexpected or of another shape.
        """
        take_residuals(self._links.all, state, {name: p.shape for name, p in self.parameters().items()})

    def _replicas(self, count: int) -> list[Any]:
        names = {p.id: name for name, p in self.parameters().items()}
        return replicas_of(self.module, self.device_ids[:count],
                           lambda i, p, device: _linked(p, device, self._links.all[i], names[p.id]))


def _linked(p: Tensor, device: str, link: Link, name: str) -> Tensor:
    """A parameter's copy on a device, whose gradient comes back over a link."""
    with no_grad():
        copy = ag_to_device(p, device)
    if not is_recording():
        return copy
    rule = partial(_carried, link=link, name=name)
    return Tensor(copy.buffer, True, Node("CompressedDataParallel", rule, (p,), (True,), p.device, ()))


def _carried(run: Run, g: Buffer, saved: str, need: Need, *, link: Link, name: str) -> Cotangents:
    gradient = Tensor(unscaled(g) if g.dtype is F16 else converted(g, F32)).numpy()
    arrived = ag_tensor(link.carry(name, gradient), saved, "f32").buffer
    return (scaled(arrived) if g.dtype is F16 else arrived,)  # by the scale of the module's device
