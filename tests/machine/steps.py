"""The steps of the state machine: a few choices become the source of a function, as a user would write it."""

from __future__ import annotations

from typing import NamedTuple

# What a step does besides training.  Not all of it can be captured; what cannot must be refused.
HOSTILE = {
    "": "",
    "global": "factor = shift",
    "dict": "factor = config['scale']",
    "numpy random": "factor = rng.uniform(0.5, 1.5)",
    "random": "factor = chance.random() + 0.5",
    "counter": "counter['n'] += 1\nfactor = min(1.0, counter['n'] / 4)",
    "argument in place": "x /= 2",
    "number of an argument": "factor = 0.5 + float(np.abs(x).max()) / 8",
    "decides by an argument": "factor = 2.0 if x.sum() > 0 else 0.5",
    "closure array": "penalty = ag.ag_mean(ag.ag_tensor(extra) * ag.ag_tensor(extra))",
    "closure tensor": "penalty = ag.ag_mean(weights * weights)",
    "raises": "if trouble['on']:\n    raise LookupError('a user says so')",
    "thread": "penalty = in_thread(lambda: ag.ag_mean(ag.ag_tensor(weights) * shift))",
    "seed": "ag.ag_seed(5)\npenalty = ag.ag_mean(noise(weights))",
    "sets lr": "opt0.lr = 0.01",
    "reads": "factor = 1.0 + abs(float(ag.ag_mean(weights)))",
    "other device": "penalty = ag.ag_to_device(ag.ag_mean(ag.ag_to_device(weights, other) * 2.0), device)",
    "trains elsewhere": "far_opt.zero_grad()\nwith ag.with_grad_tape():\n    far_loss = ag.ag_mean(far * far)\n"
    "far_opt.step(ag.backward(far_loss))",
    "other step": "penalty = inner(weights)",
    "average": "global average\naverage = average * 0.5 + ag.ag_mean(weights)\npenalty = average",
    "keeps its argument": "box.append(x)",
    "keeps a result": "box.append(ag.ag_mean(ag.ag_tensor(x) * 0.5))",
    "keeps a result in an empty box": "box.append(ag.ag_mean(ag.ag_tensor(x) * 0.5))",
    "keeps its argument in an empty box": "box.append(x)",
    "sets an attribute": "model.stage = 2",
    "assigns": "next(iter(model.parameters().values())).data = start",
    "own tensor": "penalty = ag.ag_mean(ag.ag_tensor([[0.5, 0.25]]))",
    "shares a parameter": "with ag.with_grad_tape():\n    tail_loss = ag.ag_mean(tail_of * tail_of)\n"
    "tail.step(ag.backward(tail_loss))",
    "asks what was passed twice": "factor = 0.5 if x is y else 1.0",
    "catches an error": "try:\n    factor = 1.0 / (1.0 + float(np.abs(x).max()))\nexcept Exception:\n    factor = 1.0",
    "raises after an update": "own_opt.zero_grad()\nwith ag.with_grad_tape():\n    own_loss = ag.ag_mean(own * own)\n"
    "own_opt.step(ag.backward(own_loss))\nif trouble['on']:\n    raise LookupError('a user says so')",
    "freezes": "next(iter(model.parameters().values())).requires_grad = not trouble['on']",
    "draws": "penalty = ag.ag_mean(noise(weights))",
    "default device": "with ag.ag_device(other):\n    made = ag.ag_tensor([1.0])\n"
    "penalty = ag.ag_to_device(ag.ag_mean(made), device)",
}
# What some of these read, by the names of the action `set_global`.
READ = {"raises after an update": "trouble", "freezes": "trouble",
        "global": "shift", "dict": "scale", "raises": "trouble", "closure tensor": "new weights",
        "sets an attribute": "stage"}
# Before these the loop empties the box, so a replay finds it as the recording did.
EMPTIED = ("keeps a result in an empty box", "keeps its argument in an empty box")
RETURNS = {
    "loss": "loss",
    "tuple": "loss, pred",
    "dict": "{'loss': loss, 'pred': pred}",
    "nested": "[loss, {'both': (pred, [loss])}, None]",
    "twice": "loss, loss",
    "large": "loss, loss * large",
    "grads": "dict((n, p.grad) for n, p in model.parameters().items())",
    "mapping": "grads",
    "nothing": "None",
    "parameter": "next(iter(model.parameters().values()))",
    "argument": "loss, x",
    "number": "loss, 3",
}


class Spec(NamedTuple):
    """The choices of a step."""

    zero: str = "after"  # gradients: "before", "after" (in the step), "outside" (before the call), "never"
    backward: str = "inside"  # this, `optimizer` and `clip`: "inside", "outside", or "" for not at all
    optimizer: str = "inside"
    clip: str = ""
    which: int = 0  # the optimizer
    passes: int = 1  # forward and backward passes in one step
    mapping: bool = True  # the optimizer gets what `backward` returned, else it uses ``.grad``
    returns: str = "loss"  # this and `hostile`: keys of the tables above
    hostile: str = ""
    wrap: bool = False  # the step makes a tensor of its argument itself
    parallel: bool = False  # the model works through `DataParallel`
    recompute: bool = False  # the captured step computes cheap results twice

    @property
    def opt(self) -> str:
        return f"opt{self.which}"

    def source(self) -> str:
        """The function, called ``step``."""
        inside = self.backward == "inside"
        lines = ["factor = 1.0", "penalty = None", *HOSTILE[self.hostile].splitlines()]
        lines += [f"{self.opt}.zero_grad()"] * (self.zero == "before")
        lines += [
            f"for _ in range({self.passes if inside else 1}):",
            "    with ag.with_grad_tape():",
            f"        pred = {'parallel' if self.parallel else 'model'}({'ag.ag_tensor(x)' if self.wrap else 'x'})",
            "        loss = loss_fn(pred, y) * factor",
            "        if hasattr(model, 'penalty'):",
            "            loss = loss + model.penalty()",
            "        if penalty is not None:",
            "            loss = loss + penalty",
        ]
        lines += ["    grads = ag.backward(loss)"] * inside
        given = "grads" if self.mapping else "None"
        lines += [f"ag.clip_grad_norm(model, {given}, 0.25)"] * (inside and self.clip == "inside")
        lines += [f"{self.opt}.step({'grads' if self.mapping else ''})"] * (inside and self.optimizer == "inside")
        returned = "loss" if not inside and self.returns in ("mapping", "grads") else RETURNS[self.returns]
        lines += [f"result = {returned}"] + [f"{self.opt}.zero_grad()"] * (self.zero == "after") + ["return result"]
        return "def step(x, y):\n" + "".join(f"    {line}\n" for line in lines)
