"""DataParallel: a model that deals every batch out to replicas on several devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from numbers import Real
from typing import Any

from ag.autograd.tape import Gradients, backward, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree, tree_leaves
from ag.engine.device import accelerator_name, backend_of, default_devices
from ag.engine.primitive import Array
from ag.engine.shape import along
from ag.errors import TapeError
from ag.nn.layer import Layer, State, named_tensors
from ag.ops.arithmetic import ag_add, ag_mul
from ag.parallel.comm.tensor_collectives import gather, moved, scatter, sizes_along
from ag.parallel.replicas.parallel_apply import parallel_apply, replicate, take_buffers

__all__ = ["DataParallel"]

Device = str | int


class DataParallel(Layer):
    """A model on several devices, each working on its part of every batch.

    Parameters
    ----------
    model : Layer, or any callable with ``parameters()``
        Keeps its parameters, wherever they are.
    device_ids : sequence of str or int, or of sequences of these, optional
        Devices, which may occur several times; a number is that of a card.  For a model that is on several devices
        itself, a group of as many for each replica.  Default: the device that `ag_device` was given, else every card
        that holds the model's types, else the CPU.
    output_device : str or int, optional
        Where results are gathered; default: the first device.
    dim, axis : int, optional
        The axis along which inputs are cut and results joined; default -1, the batch.

    Raises
    ------
    ValueError
        If `device_ids` is empty.
    DeviceError
        If a device is not there.

    Notes
    -----
    ``backward(loss)`` on a result brings the gradients of all replicas to the parameters.  A model that returns losses
    (tensors without axes) gets their mean, in which every sample counts the same; `backward` of this class takes that.
    Buffers, such as running averages, follow the first replica, wherever the model is; those of `SyncBatchNorm` are
    averages over all.  Whatever else a replica changes of itself, such as a number, is lost with it.
    Reference: torch-dl ``DataParallel``; PyTorch ``torch.nn.DataParallel``.

    Examples
    --------
    >>> import ag
    >>> model = ag.DataParallel(ag.ag_linear(2, 1), device_ids=["cpu", "cpu:1"])
    >>> with ag.with_grad_tape():
    ...     loss = ag.ag_mean(model(ag.ag_tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 3.0]])))
    >>> ag.backward(loss)[model.module.W].numpy().tolist()
    [[2.0, 1.0]]
    """

    def __init__(self, model: Any, device_ids: Sequence[Device | Sequence[Device]] | None = None,
                 output_device: Device | None = None, dim: int = -1, *, axis: int | None = None) -> None:
        devices: list[tuple[str, ...]]
        if device_ids is None:
            params = model.parameters().values()
            kinds = {p.buffer.dtype for p in params}  # a card may have no float64
            able = [name for name in default_devices() if kinds <= backend_of(name).dtypes]
            devices = [(name,) for name in able or [p.device for p in params][:1]]
        else:
            devices = [_names(where) for where in device_ids]
        if not devices or () in devices:
            raise ValueError(f"DataParallel: device_ids is {device_ids}; name at least one device per replica.")
        self.module = model
        self._groups = devices
        self.output_device = devices[0][0] if output_device is None else _names(output_device)[0]
        self.dim = along("DataParallel", dim, axis)
        self._losses: list[Tensor] = []  # of the last call

    @property
    def device_ids(self) -> tuple[str | tuple[str, ...], ...]:
        """Return the device of each replica, or its group of devices."""
        return tuple(group[0] if len(group) == 1 else group for group in self._groups)

    def replace_devices(self, instead: Mapping[str, str]) -> None:
        """Move replicas and results from failed devices to others."""
        self._groups = [tuple(instead.get(name, name) for name in group) for group in self._groups]
        self.output_device = instead.get(self.output_device, self.output_device)

    @property
    def wrapped_module(self) -> Any:
        """Return the model; another name of `module`."""
        return self.module

    def __call__(self, *inputs: Tree, **kwargs: Tree) -> Tree:
        return self.forward(*inputs, **kwargs)

    def forward(self, *inputs: Tree, **kwargs: Tree) -> Tree:
        """Return the model's result for a batch; all tensors and arrays among the arguments are dealt out."""
        arguments = (inputs, kwargs)
        if sizes_along(arguments, self.dim):
            parts = scatter(arguments, [group[0] for group in self._groups], self.dim)
        else:  # nothing to deal out
            parts = [moved(arguments, self._groups[0][0])]
        replicas = self._replicas(len(parts))
        results = self._results(replicas, parts, self._groups[: len(parts)])
        counts = [max(sizes_along(part, self.dim), default=1) for part in parts]
        out = gather(results, self.output_device, self.dim, counts if any(counts) else None)
        take_buffers(self.module, replicas[0])
        returned = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        self._losses = [t for t in returned if t.ndim == 0 and t.requires_grad]
        return out

    def _results(self, replicas: Sequence[Any], parts: Sequence[tuple[Tree, Tree]],
                 devices: Sequence[tuple[str, ...]]) -> list[Tree]:
        return parallel_apply(replicas, [args for args, _ in parts], [named for _, named in parts], devices)

    def _replicas(self, count: int) -> list[Any]:
        return replicate(self.module, self.device_ids[:count])

    def backward(self, loss: Tensor | float | None = None, scale: float | None = None) -> Gradients:
        """Gradients of a loss, or of the losses that the last call returned, added to the parameters' ``.grad``.

        Parameters
        ----------
        loss : Tensor, optional
            A recorded loss of one element, such as one made of the model's result; default: the losses that the last
            call returned.  A number is taken for `scale`.
        scale : float, optional
            Factor of the losses: 1 / K for K batches that are to count as one; default 1.

        Raises
        ------
        TapeError
            If the loss was not recorded or has several elements; without one, if the last call returned no recorded
            loss, or `backward` was called for it already.
        TypeError
            If the loss is neither tensor nor number, or `scale` is no number.
        """
        if loss is not None and not isinstance(loss, Tensor):
            if scale is not None:
                raise TypeError(f"DataParallel.backward: loss is a {type(loss).__name__}; a tensor is required, whose "
                                f"gradient is wanted.")
            loss, scale = None, loss
        factor = 1.0 if scale is None else scale
        if not isinstance(factor, Real) or isinstance(factor, bool):
            raise TypeError(f"DataParallel.backward: scale is a {type(factor).__name__}; a number is required, the "
                            f"factor of the losses.")
        losses, self._losses = self._losses, []
        if isinstance(loss, Tensor):
            if not loss.requires_grad:
                raise TapeError("DataParallel.backward: the loss was not recorded; compute it from the model's result "
                                "inside `with with_grad_tape():`.")
            losses = [loss]
        elif not losses:
            raise TapeError("DataParallel.backward: the last call returned no recorded tensor without axes; call the "
                            "model inside `with with_grad_tape():`, or use ag.backward on a loss of its result.")
        return backward(_scaled(losses, factor))

    def parameters(self) -> dict[str, Tensor]:
        """Return the model's parameters by its names."""
        parameters: dict[str, Tensor] = self.module.parameters()
        return parameters

    params = parameters

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over names and parameters."""
        return iter(self.parameters().items())

    def buffers(self) -> dict[str, Tensor]:
        """Return the model's buffers by its names."""
        return self.module.buffers() if hasattr(self.module, "buffers") else {}

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the model's parameters and buffers by all their names."""
        return named_tensors(self.module)

    def state_dict(self) -> dict[str, Array]:
        """Return the model's state, without a prefix."""
        state: dict[str, Array] = self.module.state_dict()
        return state

    def load_state_dict(self, state: State, strict: bool = True) -> None:
        """Load values by the model's names; nothing changes if they do not fit."""
        self.module.load_state_dict(state, strict)


def _names(where: Device | Sequence[Device]) -> tuple[str, ...]:
    devices = [where] if isinstance(where, (str, int)) else where
    return tuple(backend_of(accelerator_name(d) if isinstance(d, int) else d).name for d in devices)


def _scaled(losses: list[Tensor], scale: float) -> Tensor:
    """Return the losses' sum times `scale`, recorded even if the tape is off."""
    with with_grad_tape():
        total = reduce(ag_add, losses)
        return total if scale == 1.0 else ag_mul(total, float(scale))
