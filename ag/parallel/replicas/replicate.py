"""Replicate: copies of a model on several devices, whose gradients come back to the one model.

Inside `with_grad_tape` the copy of a parameter is a result computed from it.  So `backward` adds the gradients of all
copies to the parameter, in the order of the copies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

from ag.autograd.create import ag_tensor
from ag.autograd.op import Cotangents, Need, Run
from ag.autograd.tape import Node, is_recording, no_grad
from ag.autograd.tensor import Tensor
from ag.engine.buffer import Buffer
from ag.engine.device import backend_of
from ag.engine.interpreter import current
from ag.nn.layer import Model, buffers_of, state_of
from ag.ops.convert import ag_to_device

M = TypeVar("M", bound=Model)
CopyOf = Callable[[int, Tensor, str], Tensor]  # (replica, parameter, device) -> its copy there


def replicate(model: M, devices: Sequence[str | Sequence[str]]) -> list[M]:
    """Copies of a model, one per device, for one forward pass.

    Parameters
    ----------
    model : Layer, or any object with ``parameters()``
    devices : sequence of str, or of sequences of str
        A device may occur several times.  For a model that is on several devices itself, a group of as many for each
        replica: what is on the model's first device goes to the group's first, and so on.

    Returns
    -------
    list
        Models like `model`.  Inside `with_grad_tape`, their parameters are results computed from the model's: the
        gradients of all replicas arrive, added up, at the model's parameters.  The first replica works with the
        model's own buffers, such as running averages, if it is on their device; the others with copies.  `DataParallel`
        has the first replica's buffers in the model after every pass.

    Raises
    ------
    ValueError
        If there is no device, or a group has another number of devices than the model.
    DeviceError
        If a device is not there.

    Notes
    -----
    Replicas are made anew for every pass, so they cannot lag behind: weights, train or eval mode, buffers and whatever
    else the model holds are as they are now.  Tensors that occur twice in the model do so in a replica.

    References
    ----------
    PyTorch ``torch.nn.parallel.replicate``.

    Examples
    --------
    >>> import ag
    >>> [m.W.device for m in ag.replicate(ag.ag_linear(2, 1), ["cpu", "cpu:1"])]
    ['cpu', 'cpu:1']
    """
    return replicas_of(model, devices, lambda i, p, device: copy_for_replica(p, device))


def copy_for_replica(x: Tensor, device: str) -> Tensor:
    """Copy a tensor to a replica's device; it gets a new node even if it is there already.

    So `backward` adds up the replicas' gradients in the order of the copies, wherever they are.
    """
    if x.device != device or not (is_recording() and x.requires_grad):
        return ag_to_device(x, device)
    if (here := current()) is not None:
        here.uses((x,), False)
    return Tensor(x.buffer, True, Node("replicate", _same_gradient, (x,), (True,), None, ()))


def _same_gradient(run: Run, g: Buffer, saved: None, need: Need) -> Cotangents:
    return (g,)


def replicas_of(model: M, devices: Sequence[str | Sequence[str]], copy_of: CopyOf) -> list[M]:
    """Make replicas, where ``copy_of(i, p, device)`` makes replica i's copy of a parameter."""
    if not devices:
        raise ValueError("replicate: devices is empty; name at least one.")
    params = model.parameters().values()
    trained = {id(p) for p in params}
    state = [x for x in state_of(model).values() if id(x) not in trained]
    places = list(dict.fromkeys(x.device for x in (*params, *state)))
    moves = [_moves(places, where) for where in devices]
    # The first replica's copies are made last, so that `backward` comes to its gradients first.
    copies = {i: {id(p): copy_of(i, p, moves[i][p.device]) for p in params} for i in [*range(1, len(devices)), 0]}
    replicas = []
    for i, goes in enumerate(moves):
        memo: dict[int, object] = {**copies[i]}
        with no_grad():
            for x in state:
                own = i == 0 and x.device == goes[x.device]
                memo[id(x)] = x if own else ag_tensor(x.numpy(), device=goes[x.device], dtype=x.dtype)
        replicas.append(copy.deepcopy(model, memo))
    return replicas


def take_buffers(model: Model, replica: Model) -> None:
    """Copy the buffers of a replica to its model."""
    theirs = buffers_of(replica)
    with no_grad():
        for name, x in buffers_of(model).items():
            value = theirs.get(name, x)
            if value.shape != x.shape:
                x.rebind(ag_to_device(value, x.device).buffer)
            elif value is not x:
                x.data = value.numpy()  # in place, where captured steps look for it


def _moves(places: list[str], where: str | Sequence[str]) -> dict[str, str]:
    """Map the devices of a model to those of a replica."""
    if isinstance(where, str):
        return dict.fromkeys(places, backend_of(where).name)
    group = [backend_of(device).name for device in where]
    if len(group) != len(places):
        raise ValueError(f"replicate: the model is on {', '.join(places)} and the group is {', '.join(group)}; "
                         f"give a device for each.")
    return dict(zip(places, group, strict=True))
