"""What `train_distributed` does with a model in one step, on the devices of one process: its loss and gradients.

A model is a pipeline, which makes the step itself; or it is called with the input, and a function makes the loss of its
output and the targets; or it is called with both and returns its loss.  Knows no optimizer, no rank and no data.
`ag.parallel.elastic.train_distributed` calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from ag.autograd.tape import backward, with_grad_tape
from ag.autograd.tensor import Tensor
from ag.parallel.comm.scatter import moved
from ag.parallel.comm.tree import Tree
from ag.parallel.sharded.model_parallel import ModelParallel
from ag.parallel.sharded.pipeline import Pipeline

__all__ = ["LossFn", "loss_and_gradients", "takes_targets"]

LossFn = Callable[[Any, Any], Tensor]  # (output, targets) -> loss


def takes_targets(model: Any) -> bool:
    """Whether a model can be called with input and targets."""
    inner = getattr(model, "module", model)  # of a DataParallel
    first = inner.layers[0] if isinstance(inner, ModelParallel) else inner
    try:
        signature(getattr(first, "forward", first)).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # written in C
        return True
    return True


def loss_and_gradients(model: Any, x: Tree, y: Tree, loss_fn: LossFn | None) -> Tensor:
    """The loss of a batch; gradients are added to the parameters."""
    if isinstance(model, Pipeline) and loss_fn is not None:
        return model.step(x, y, loss_fn)
    with with_grad_tape():
        if loss_fn is None:
            loss: Tensor = model(x, y)
        else:
            out = model(x)
            loss = loss_fn(out, moved(y, out.device) if isinstance(out, Tensor) else y)
    backward(loss)
    return loss
