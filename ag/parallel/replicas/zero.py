"""ZeRO: optimizer state, gradients and weights of data-parallel training, shared out over the replicas' devices.

Each device has its 1/N of the moments, from stage 2 on of gradients, and at stage 3 of weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf, sqrt
from typing import Any, NoReturn

import numpy as np

from ag.autograd.activation_checkpoint import ag_checkpoint
from ag.autograd.create import ag_param, ag_tensor, fetch_cotangent, place_cotangent
from ag.autograd.op import Cotangents, Need, Run
from ag.autograd.tape import Gradients, Node, is_recording, no_grad
from ag.autograd.tensor import Tensor
from ag.autograd.tree import Tree
from ag.engine.buffer import Buffer
from ag.engine.device import backend_of
from ag.engine.interpreter import current
from ag.engine.kernels.convert import number_arrays
from ag.engine.kernels.optimizer import clip_factor, square_sums
from ag.engine.kernels.reduce import CHUNK, sum_over
from ag.engine.primitive import Array
from ag.errors import compare_names
from ag.nn.layer import Layer, Model, State, load_into
from ag.ops.creation import ag_to_device
from ag.optim.clipping import LEAST_FACTOR, clip_grad_norm, factors, least_norm, norm_on_the_host
from ag.optim.flat import ALIGN, flat_layout, named_parameters
from ag.optim.optimizer import Optimizer, as_gradient, gradients_given, optimizer_adam, refuse_untrained
from ag.optim.settings import number_or_nan
from ag.parallel.replicas.data_parallel import DataParallel, SyncBatchNorm, parallel_apply, replicas_of

__all__ = ["ZeroOptimizer"]

class ZeroOptimizer:
    """An optimizer whose memory is shared out over several devices, with replicas of the model on them.

    Parameters
    ----------
    model : Layer
        Trained through ``.model``, its replicas on the devices, which is called like a `DataParallel`.
    optimizer : callable, optional
        `optimizer_adam`, or another that is called with parameters and `kwargs`.
    devices : sequence of str, optional
        One per replica; each also keeps an equal part of what is shared out.  Default: that of the model.
    stage : {1, 2, 3}, optional
        What is shared out: 1, the optimizer's state; 2, gradients, too; 3, parameters, too.
    **kwargs : object
        The optimizer's settings, such as ``lr``.

    Attributes
    ----------
    model : DataParallel
        What to call, and whose ``state_dict`` has the weights.
    optimizer : Optimizer
        Of the shards; schedules are made for this one.

    Raises
    ------
    ValueError, TypeError, DeviceError
        If an argument is none of these, or the model has a `SyncBatchNorm` or is no layer at stage 3.

    Notes
    -----
    The results are those of a `DataParallel` and an ordinary optimizer, on like devices to the bit; the state, too,
    which either can load.  At stage 3 `model` is emptied: whole weights exist while the layer that owns them runs,
    forward and, computed again, backward; replicas then run one after the other.
    Reference: Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".

    Examples
    --------
    >>> import ag
    >>> zero = ag.ZeroOptimizer(ag.ag_linear(2, 1), devices=["cpu", "cpu:1"], stage=2, lr=0.1)
    >>> with ag.with_grad_tape():
    ...     loss = ag.ag_mean(zero.model(ag.ag_tensor([[1.0, 2.0], [0.0, 1.0]])))
    >>> _ = ag.backward(loss), zero.step()
    """

    def __init__(self, model: Any, optimizer: Callable[..., Optimizer] = optimizer_adam,
                 devices: Sequence[str] | None = None, stage: int = 1, **kwargs: Any) -> None:
        if stage not in (1, 2, 3):
            raise ValueError(f"ZeroOptimizer: stage is {stage!r}; use 1, 2 or 3.")
        if not callable(optimizer):
            raise TypeError(f"ZeroOptimizer: optimizer is a {type(optimizer).__name__}; a function that makes one is "
                            f"required, such as optimizer_adam; devices are given as devices=[...].")
        params = named_parameters(model, "ZeroOptimizer")
        places = [next(iter(params.values())).device] if devices is None else list(devices)
        self.stage = stage
        plain = DataParallel(model, places)
        self._sharded = shard_parameters(params, list(map(str, plain.device_ids)))
        self.model = plain if stage == 1 else (ShardedGradients, ShardedParameters)[stage - 2](
            model, places, self._sharded)
        self.optimizer = optimizer(all_shards(self._sharded), **kwargs)
        self._scale_gradients()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be copied or pickled: shards on several devices belong to one model."""
        raise TypeError("ZeroOptimizer: it cannot be copied or pickled, as its shards lie on several devices; make one "
                        "for the other model and load this one's state_dict() into it.")

    def __getattr__(self, name: str) -> Any:
        inner = vars(self).get("optimizer")
        if inner is None or name not in inner.settings:
            raise AttributeError(f"ZeroOptimizer: there is no attribute {name!r}.")
        return getattr(inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Assigning a setting, such as `lr`, takes effect at the next step."""
        inner = vars(self).get("optimizer")
        if inner is None:
            super().__setattr__(name, value)
        elif hasattr(type(self), name) or name in vars(self):
            raise AttributeError(f"ZeroOptimizer: {name!r} cannot be assigned; make a new ZeroOptimizer.")
        else:
            setattr(inner, name, value)

    @property
    def t(self) -> int:
        """Return the steps taken so far; waits for the devices."""
        return self.optimizer.t

    def step(self, grads: Gradients | Mapping[Any, Any] | None = None) -> None:
        """Update by the gradients that `backward` left or returned, or by those of whole parameters by name."""
        self._scale_gradients()
        refuse_untrained(self.model.module, {s.name: s.param for s in self._sharded}, "ZeroOptimizer")
        of_shards = self._of_shards(grads)
        if self.stage < 3:  # the model's parameters may have been assigned
            for s in self._sharded:
                s.assign(s.param.numpy())
        self.optimizer.step(of_shards)
        if len(gradients_given(self.optimizer.params, of_shards, "step")) < len(self.optimizer.params):
            self.optimizer.count_alike()
        if self.stage < 3:
            for s in self._sharded:
                s.param.data = s.numpy()

    def _scale_gradients(self) -> None:
        """Apply the loss scale of the shards to gradients of the whole, which `step` cuts up at stage 1."""
        self.optimizer.scale_gradients_of(s.param for s in self._sharded)

    def _of_shards(self, grads: Any) -> Any:
        """Return gradients of the shards from those of the parameters."""
        if self.stage > 1 and (grads is None or isinstance(grads, Gradients)):
            return grads
        given = gradients_given({s.name: s.param for s in self._sharded}, grads, "step")
        gradients: dict[str, Array] = {}
        for s in self._sharded:
            if s.name in given:
                gradients |= s.cut(as_gradient(s.name, s.param, given[s.name], "step").numpy())
        return gradients

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self.optimizer.zero_grad()
        for s in self._sharded:
            s.param.grad = None

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale gradients as the function `clip_grad_norm` does, to the bit; return the norm before."""
        if self.stage == 1:
            return float(clip_grad_norm({s.name: s.param for s in self._sharded}, None, max_norm))
        if not number_or_nan(max_norm) > 0:
            raise ValueError(f"clip_grad_norm: max_norm is {max_norm!r}; it must be a positive number.")
        grads = [shard.grad for shard in self.optimizer.params.values() if shard.grad is not None]
        norm, factor = self._norm(max_norm)
        if not least_norm(g.buffer for g in grads) <= norm < inf:  # squares may overflow or vanish
            arrays = {key: p.grad.numpy() for key, p in self.optimizer.params.items() if p.grad is not None}
            norm, factor = norm_on_the_host(arrays, self.optimizer.loss_scale is not None), 0.0
        if max_norm < norm < inf:
            with np.errstate(all="ignore"):
                for g in grads:
                    for part in (factor,) if factor > LEAST_FACTOR else factors(max_norm, norm):
                        g.data = g.numpy() * part
        return norm

    def _norm(self, max_norm: float) -> tuple[float, float]:
        """Return the global norm and the factor of gradients."""
        device, dtype, sums = str(self.model.device_ids[0]), "f32", []
        for s in self._sharded:
            grads = [shard.grad for shard in s.shards.values() if shard.grad is not None]
            if grads:
                dtype = max(dtype, grads[0].dtype)  # float64, if any is
                whole = ag_tensor(s.joined([g.numpy() for g in grads]).reshape(-1, 1), device, grads[0].dtype).buffer
                near, _ = whole.backend.launch(square_sums, whole.view((whole.size,)), chunk=CHUNK)
                sums.append(Tensor(near).numpy())
        if not sums:
            return 0.0, 1.0
        every = ag_tensor(np.concatenate(sums).reshape(-1, 1), device, dtype).buffer
        launch = every.backend.launch
        square = sum_over(launch, every.view((every.size,)), (0,)).view(())
        factor, _ = launch(clip_factor, square, square, max_norm=float(max_norm))
        return sqrt(Tensor(square).item()), Tensor(factor).item()

    def state_dict(self) -> dict[str, Array]:
        """Return the state that an ordinary optimizer of the same parameters has."""
        inner = self.optimizer.state_dict()
        state = {name: x for name, x in inner.items() if name in ("state", "loss_scale", "settings")}
        for kind in _kinds(inner):
            for s in self._sharded:
                parts = [inner[f"{kind}.{key}"] for key in s.shards if f"{kind}.{key}" in inner]
                if parts:
                    state[f"{kind}.{s.name}"] = parts[0] if kind == "count" else s.joined(parts)
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load the state of this class or of an ordinary optimizer; a CheckpointError lists names that do not fit."""
        refusal = "load_state_dict: the state does not fit this optimizer"
        arrays, inner = number_arrays(state, refusal), self.optimizer.state_dict()
        mine = {k: x.shape for k, x in self.state_dict().items() if not k.startswith("count.")}
        may = {f"count.{s.name}": (inner["state"].size - 1,) for s in self._sharded}
        compare_names(refusal, mine | may, {k: x.shape for k, x in arrays.items()}, mine)
        dealt = {name: arrays["state"] for name in inner if name.startswith("state") and "." not in name}  # per device
        dealt |= {name: arrays[name] for name in ("loss_scale", "settings") if name in arrays}
        for kind in _kinds(arrays):
            for s in self._sharded:
                if (whole := arrays.get(f"{kind}.{s.name}")) is not None:
                    parts = dict.fromkeys(s.shards, whole) if kind == "count" else s.cut(whole)
                    dealt |= {f"{kind}.{key}": part for key, part in parts.items()}
        self.optimizer.load_state_dict(dealt)

    def __repr__(self) -> str:
        return f"ZeroOptimizer({self.optimizer!r}, stage={self.stage}, devices={list(self.model.device_ids)})"


def _kinds(state: Mapping[str, Any]) -> list[str]:
    """List what an optimizer keeps for each parameter, such as ``m`` and ``v``."""
    return list(dict.fromkeys(name.split(".")[0] for name in state if "." in name))


class ShardedGradients(DataParallel):
    """Stage 2: replicas whose gradients are scattered to the parameter shards; the full parameters receive none."""

    def __init__(self, model: Model, devices: Sequence[str], sharded: Sequence[ShardedParameter]) -> None:
        super().__init__(model, devices)
        self._sharded = {s.param.id: s for s in sharded}

    def _replicas(self, count: int) -> list[Model]:
        refuse_untrained(self.module, {s.name: s.param for s in self._sharded.values()}, "ZeroOptimizer")
        return self._made([str(device) for device in self.device_ids[:count]])

    def _made(self, devices: list[str]) -> list[Model]:
        return replicas_of(self.module, devices,
                           lambda i, p, device: self._sharded[p.id].linked(_copied(p, devices[i])))


class ShardedParameters(ShardedGradients):
    """Stage 3: replicas that gather the weights of a layer when it runs, and again in the backward pass."""

    def __init__(self, model: Model, devices: Sequence[str], sharded: Sequence[ShardedParameter]) -> None:
        super().__init__(model, devices, sharded)
        if not isinstance(model, Layer):
            raise TypeError(f"ZeroOptimizer: the model is a {type(model).__name__}; at stage 3 it must be a layer.")
        if any(isinstance(layer, SyncBatchNorm) for _, layer in model.modules()):
            raise ValueError("ZeroOptimizer: the model has a SyncBatchNorm, and at stage 3 replicas run one after the "
                             "other; use stage 2 or ag_batch_norm.")
        for s in sharded:
            s.param.rebind(ag_tensor(np.zeros((0, 1)), s.param.device, s.dtype).buffer)

    def _made(self, devices: list[str]) -> list[Model]:
        return [self._replica(i, device) for i, device in enumerate(devices)]

    def _replica(self, i: int, device: str) -> Model:
        memo: dict[int, object] = {}
        for x in super().named_tensors().values():  # a frozen parameter stays in its shards
            memo[id(x)] = x if x.id in self._sharded or (i == 0 and x.device == device) else (
                ag_tensor(x.numpy(), device, x.dtype))
        for layer in {id(owner): owner for owner in _owners(self.module, self._sharded)}.values():
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
        return all_shards(self._sharded.values())

    params = parameters

    def named_tensors(self) -> dict[str, Tensor]:
        return {**self.parameters(), **self.buffers()}

    def state_dict(self, frozen: bool = False) -> dict[str, Array]:
        own = {name: self._sharded[x.id].numpy() if x.id in self._sharded else x.numpy()
               for name, x in super().named_tensors().items()}
        return own | ({name: x.numpy() for name, x in self.frozen().items()} if frozen else {})

    def load_state_dict(self, state: State, strict: bool = True) -> None:
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
        return self.layer.modules(prefix)

    def forward(self, *args: Tree, **kwargs: Tree) -> Tree:
        """Return the layer's result; `backward` computes it again."""
        return ag_checkpoint(self._run, args, kwargs)

    def _run(self, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> Tree:
        memo: dict[int, object] = {
            id(x): self._sharded[x.id].whole(self._device) if x.id in self._sharded else x
            for x in self.layer.named_tensors().values()}
        return copy.deepcopy(self.layer, memo)(*args, **kwargs)


def _copied(p: Tensor, device: str) -> Tensor:
    with no_grad():
        return ag_to_device(p, device)


def _owners(model: Layer, sharded: Container[int]) -> list[Layer]:
    """Return the outermost layers that own sharded parameters themselves."""
    within = {f"{name}_{own}" for name, child in model.children().items() for own in child.named_tensors()}
    if any(x.id in sharded and name not in within for name, x in model.named_tensors().items()):
        return [model]
    return [owner for child in model.children().values() for owner in _owners(child, sharded)]


class ShardedParameter:
    """A parameter in shards, each a parameter that an ordinary optimizer steps: cutting changes no bit."""

    def __init__(self, name: str, param: Tensor, places: Sequence[tuple[str, slice]]) -> None:
        self.name, self.param, self.shape, self.dtype = name, param, param.shape, param.dtype  # of the whole
        self.spans = [span for _, span in places]  # elements of each shard
        flat = param.numpy().reshape(-1)
        self.shards: dict[str, Tensor] = {}  # columns, by names such as W[0:512], in order
        for device, span in places:
            key = f"{name}[{span.start}:{span.stop}]"
            self.shards[key] = ag_param(flat[span].reshape(-1, 1), device, param.dtype)
            self.shards[key].name = key

    def numpy(self) -> Array:
        return self.joined([shard.numpy() for shard in self.shards.values()])

    def joined(self, parts: Sequence[Array]) -> Array:
        """Join parts of each shard, such as gradients, to an array of the whole's shape."""
        return np.concatenate([part.reshape(-1) for part in parts]).reshape(self.shape)

    def cut(self, whole: Array) -> dict[str, Array]:
        """Cut an array as large as the whole into parts for each shard."""
        flat = whole.reshape(-1)
        return {key: flat[span].reshape(-1, 1) for key, span in zip(self.shards, self.spans, strict=True)}

    def assign(self, whole: Array) -> None:
        for key, part in self.cut(whole).items():
            self.shards[key].data = part

    def whole(self, device: str) -> Tensor:
        """Join the parameter on a device; gradients go to the shards."""
        return self.linked(ag_tensor(self.numpy(), device, self.dtype))

    def linked(self, full: Tensor) -> Tensor:
        """Make a copy of the whole send its gradient to the shards, unless the parameter is frozen."""
        shards, taped = tuple(self.shards.values()), is_recording()
        if not (taped and self.param.requires_grad):
            if (here := current()) is not None:
                here.uses(shards, taped is None and self.param.requires_grad)
            return full
        return Tensor(full.buffer, True, Node("ZeroOptimizer", _scatter_vjp, shards, (True,) * len(shards),
                                              (self, [shard.device for shard in shards]), ()))


def _scatter_vjp(run: Run, g: Buffer, saved: tuple[ShardedParameter, list[str]], need: Need) -> Cotangents:
    sharded, devices = saved
    parts = sharded.cut(fetch_cotangent(g)).values()
    return tuple(place_cotangent(part, backend_of(device), g.dtype)
                 for part, device in zip(parts, devices, strict=True))


def shard_parameters(params: Mapping[str, Tensor], devices: Sequence[str]) -> list[ShardedParameter]:
    """Cut parameters so that every device has an equal stretch of all, each padded to 16 bytes."""
    starts, end = flat_layout({name: p.buffer.nbytes for name, p in params.items()}, ALIGN)
    cuts = [end // ALIGN * i // len(devices) * ALIGN for i in range(len(devices) + 1)]
    sharded = []
    for name, p in params.items():
        places: list[tuple[str, slice]] = []
        for device, (low, high) in zip(devices, pairwise(cuts), strict=True):
            first, last = (min(max(at - starts[name], 0) // p.buffer.dtype.itemsize, p.size) for at in (low, high))
            if first < last:
                places.append((device, slice(first, last)))
        sharded.append(ShardedParameter(name, p, places))
    return sharded


def all_shards(sharded: Iterable[ShardedParameter]) -> dict[str, Tensor]:
    return {key: shard for s in sharded for key, shard in s.shards.items()}
