"""The replicas of a `ZeroOptimizer`: a `DataParallel` whose gradients, and at stage 3 weights, are in shards.

    stage 2   every replica has all weights; a gradient is cut up as soon as it is complete: each shard's owner gets its
              part, and the model's parameter gets none
    stage 3   nobody has all weights; a layer's are put together on a replica's device when the layer runs, forgotten,
              and put together again when `backward` comes to it (activation checkpointing around every layer)

Knows shards and models; no optimizer.  Only `ag.parallel.replicas.zero` makes these.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ag.autograd.activation_checkpoint import ag_checkpoint
from ag.autograd.create import ag_tensor
from ag.autograd.tape import no_grad
from ag.autograd.tensor import Tensor
from ag.engine.primitive import Array
from ag.nn.layer import Layer, Model, State, load_into
from ag.ops.convert import ag_to_device
from ag.optim.gradients import refuse_untrained
from ag.parallel.comm.tree import Tree
from ag.parallel.replicas.data_parallel import DataParallel
from ag.parallel.replicas.parallel_apply import parallel_apply
from ag.parallel.replicas.replicate import replicas_of
from ag.parallel.replicas.sync_batch_norm import SyncBatchNorm
from ag.parallel.replicas.zero_shards import ShardedParameter, all_shards

__all__ = ["ShardedGradients", "ShardedParameters"]


class ShardedGradients(DataParallel):
    """Stage 2: replicas whose gradients are scattered to the parameter shards; the full parameters receive none."""

    def __init__(self, model: Model, devices: Sequence[str], sharded: Sequence[ShardedParameter]) -> None:
        super().__init__(model, devices)
        self._sharded = {s.param.id: s for s in sharded}

    def _replicas(self, count: int) -> list[Model]:
        refuse_untrained(self.module, {s.name: s.param for s in self._sharded.values()}, "ZeroOptimizer")
        devices = [str(device) for device in self.device_ids[:count]]
        return replicas_of(self.module, devices,
                           lambda i, p, device: self._sharded[p.id].linked(_copied(p, devices[i])))


class ShardedParameters(DataParallel):
    """Stage 3: replicas that gather the weights of a layer when it runs, and again in the backward pass."""

    def __init__(self, model: Model, devices: Sequence[str], sharded: Sequence[ShardedParameter]) -> None:
        super().__init__(model, devices)
        if not isinstance(model, Layer):
            raise TypeError(f"ZeroOptimizer: the model is a {type(model).__name__}; at stage 3 it must be a layer.")
        if any(isinstance(layer, SyncBatchNorm) for _, layer in model.modules()):
            raise ValueError("ZeroOptimizer: the model has a SyncBatchNorm, and at stage 3 replicas run one after the "
                             "other; use stage 2 or ag_batch_norm.")
        self._sharded = {s.param.id: s for s in sharded}
        for s in sharded:
            s.param.rebind(ag_tensor(np.zeros((0, 1)), s.param.device, s.dtype).buffer)

    def _replicas(self, count: int) -> list[Model]:
        refuse_untrained(self.module, {s.name: s.param for s in self._sharded.values()}, "ZeroOptimizer")
        return [self._replica(i, str(device)) for i, device in enumerate(self.device_ids[:count])]

    def _replica(self, i: int, device: str) -> Model:
        memo: dict[int, object] = {}
        for x in self.buffers().values():
            memo[id(x)] = x if i == 0 and x.device == device else ag_tensor(x.numpy(), device, x.dtype)
        memo |= {id(p): p for p in self.module.parameters().values()}
        for layer in {id(owner): owner for owner in _owners(self.module)}.values():
            memo[id(layer)] = _GatheredLayer(copy.deepcopy(layer, memo), self._sharded, device)
        replica: Model = copy.deepcopy(self.module, memo)
        return replica

    def _results(self, replicas: Sequence[Any], parts: Sequence[tuple[Tree, Tree]],
                 devices: Sequence[tuple[str, ...]]) -> list[Tree]:
        results = {}
        for i in [*range(1, len(parts)), 0]:  # as in replicas_of
            args, named = parts[i]
            results[i] = parallel_apply([replicas[i]], [args], [named], [devices[i]])[0]
        return [results[i] for i in range(len(parts))]

    def parameters(self) -> dict[str, Tensor]:
        """The shards by name."""
        return all_shards(self._sharded.values())

    params = parameters

    def named_tensors(self) -> dict[str, Tensor]:
        """The shards and the model's buffers by name."""
        return {**self.parameters(), **self.buffers()}

    def state_dict(self) -> dict[str, Array]:
        """The model's state, put together."""
        return {name: self._sharded[x.id].numpy() if x.id in self._sharded else x.numpy()
                for name, x in super().named_tensors().items()}

    def load_state_dict(self, state: State, strict: bool = True) -> None:
        """Take over values by the model's names; nothing changes if they do not fit."""
        whole = {key: ag_tensor(s.numpy(), "cpu", s.dtype) for key, s in self._sharded.items()}
        load_into({name: whole.get(x.id, x) for name, x in super().named_tensors().items()}, state, strict)
        for key, s in self._sharded.items():
            s.assign(whole[key].numpy())


class _GatheredLayer(Layer):
    """A layer that has its weights only while it runs."""

    def __init__(self, layer: Layer, sharded: Mapping[int, ShardedParameter], device: str) -> None:
        self.layer = layer
        self._sharded, self._device = sharded, device  # parameters by the id of the whole
        self.training = layer.training

    def modules(self, prefix: str = "") -> Iterator[tuple[str, Layer]]:
        """The layer's, so that tensors have the names that they have in the model."""
        return self.layer.modules(prefix)

    def forward(self, *args: Tree, **kwargs: Tree) -> Tree:
        """The layer's result; `backward` computes it again."""
        return ag_checkpoint(self._run, args, kwargs)

    def _run(self, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> Tree:
        memo: dict[int, object] = {id(x): x for x in self.layer.buffers().values()}
        memo |= {id(p): self._sharded[p.id].whole(self._device) for p in self.layer.parameters().values()}
        return copy.deepcopy(self.layer, memo)(*args, **kwargs)


def _copied(p: Tensor, device: str) -> Tensor:
    with no_grad():
        return ag_to_device(p, device)


def _owners(model: Layer) -> list[Layer]:
    """The outermost layers that own parameters themselves."""
    within = {f"{name}_{own}" for name, child in model.children().items() for own in child.named_tensors()}
    if any(x.requires_grad and name not in within for name, x in model.named_tensors().items()):
        return [model]
    return [owner for child in model.children().values() for owner in _owners(child)]
