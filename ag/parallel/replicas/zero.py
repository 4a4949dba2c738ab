"""ZeroOptimizer: what data-parallel training keeps for every parameter, shared out over the replicas' devices.

One ordinary optimizer steps the shards (`ag.parallel.replicas.zero_shards`), each on its device; this module says what
is in shards and for how long.  On each of N devices there is

    stage   of weights   of gradients   of the optimizer's moments
      1        all           all                 1/N
      2        all           1/N                 1/N
      3        1/N           1/N                 1/N           and the whole weights of the layer that runs

Knows optimizers, shards and `DataParallel`; no trainer and no file.  Users make it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, sqrt
from typing import Any, NoReturn

import numpy as np

from ag.autograd.create import ag_tensor
from ag.autograd.tape import Gradients
from ag.autograd.tensor import Tensor
from ag.engine.kernels.convert import number_arrays
from ag.engine.kernels.optimizer import clip_factor, square_sums
from ag.engine.kernels.reduce import CHUNK, sum_over
from ag.engine.primitive import Array
from ag.errors import compare_names
from ag.names import Making
from ag.optim.flat import named_parameters
from ag.optim.gradients import (
    LEAST_FACTOR,
    as_gradient,
    clip_grad_norm,
    factors,
    gradients_given,
    least_norm,
    norm_on_the_host,
    refuse_untrained,
)
from ag.optim.optimizer import Optimizer
from ag.optim.rules import optimizer_adam
from ag.optim.settings import number_or_nan
from ag.parallel.replicas.data_parallel import DataParallel
from ag.parallel.replicas.zero_replicas import ShardedGradients, ShardedParameters
from ag.parallel.replicas.zero_shards import all_shards, shard_parameters

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
    ValueError
        If `stage` is another number, there are no devices, or the model has a `SyncBatchNorm` at stage 3.
    DeviceError
        If a device is not there.
    TypeError
        If the model is no layer at stage 3, or `optimizer` no function.

    Notes
    -----
    The results are those of a `DataParallel` and an ordinary optimizer: on like devices to the bit, with
    ``clip_grad_norm`` of this class and schedules, too.  ``state_dict`` is the ordinary optimizer's, whatever the
    number of devices, and can be loaded by either.  At stage 3 `model` is emptied: whole weights exist while the layer
    that owns them runs, forward and, computed again, backward; replicas then run one after the other.

    References
    ----------
    Rajbhandari, Rasley, Ruwase, He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.

    Examples
    --------
    >>> import ag
    >>> zero = ag.ZeroOptimizer(ag.ag_linear(2, 1), devices=["cpu", "cpu:1"], stage=2, lr=0.1)
    >>> with ag.with_grad_tape():
    ...     loss = ag.ag_mean(zero.model(ag.ag_tensor([[1.0, 2.0], [0.0, 1.0]])))
    >>> grads = ag.backward(loss)
    >>> zero.step()
    >>> zero.t
    1
    """

    __signature__ = Making()

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
        """Steps taken so far; waits for the devices."""
        return self.optimizer.t

    def step(self, grads: Gradients | Mapping[Any, Any] | None = None) -> None:
        """Update every parameter that has a gradient.

        Parameters
        ----------
        grads : Gradients or dict, optional
            What `backward` returned, or gradients of whole parameters by name; default: those that `backward` left.
        """
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
        """Let the loss scale of the shards hold for gradients of the whole, which `step` cuts up at stage 1."""
        self.optimizer.scale_gradients_of(s.param for s in self._sharded)

    def _of_shards(self, grads: Any) -> Any:
        """Gradients of the shards, from those of the parameters."""
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
        """Scale the gradients that `backward` left so that their global norm is at most `max_norm`.

        As the function `clip_grad_norm`, with the same sums; one whole gradient at a time is on the first device.

        Parameters
        ----------
        max_norm : float
            Positive.

        Returns
        -------
        float
            The norm before.
        """
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
        """The global norm, and what to multiply gradients with."""
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

    # -------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Array]:
        """What an ordinary optimizer of the same parameters has."""
        inner = self.optimizer.state_dict()
        state = {name: x for name, x in inner.items() if name in ("state", "loss_scale", "settings")}
        for kind in _kinds(inner):
            for s in self._sharded:
                parts = [inner[f"{kind}.{key}"] for key in s.shards if f"{kind}.{key}" in inner]
                if parts:
                    state[f"{kind}.{s.name}"] = parts[0] if kind == "count" else s.joined(parts)
        return state

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Take over what `state_dict` of this class or of an ordinary optimizer returned; all or nothing.

        Raises
        ------
        CheckpointError
            Listing the names that are missing, unexpected or of another shape.
        """
        refusal = "load_state_dict: the state does not fit this optimizer"
        arrays, inner = number_arrays(state, refusal), self.optimizer.state_dict()
        mine = {k: x.shape for k, x in self.state_dict().items() if not k.startswith("count.")}
        may = {f"count.{s.name}": (inner["state"].size - 1,) for s in self._sharded}
        compare_names(refusal, mine | may, {k: x.shape for k, x in arrays.items()}, mine)
        dealt = {name: arrays["state"] for name in inner if _is_numbers(name)}
        dealt |= {name: arrays[name] for name in ("loss_scale", "settings") if name in arrays}
        for kind in _kinds(arrays):
            for s in self._sharded:
                if (whole := arrays.get(f"{kind}.{s.name}")) is not None:
                    parts = dict.fromkeys(s.shards, whole) if kind == "count" else s.cut(whole)
                    dealt |= {f"{kind}.{key}": part for key, part in parts.items()}
        self.optimizer.load_state_dict(dealt)

    def __repr__(self) -> str:
        return f"ZeroOptimizer({self.optimizer!r}, stage={self.stage}, devices={list(self.model.device_ids)})"


def _is_numbers(name: str) -> bool:
    """Whether a name in an optimizer's state is that of a device's changing numbers."""
    return name.startswith("state") and "." not in name


def _kinds(state: Mapping[str, Any]) -> list[str]:
    """What an optimizer keeps for each parameter, such as ``m`` and ``v``."""
    return list(dict.fromkeys(name.split(".")[0] for name in state if "." in name))
