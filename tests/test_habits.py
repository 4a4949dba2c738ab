"""Habits: ordinary lines of PyTorch and numpy code, each works here or is answered with what to write instead."""

from __future__ import annotations

import concurrent.futures
import copy
import inspect
import io
import math
import multiprocessing
import operator
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ag
from ag.errors import AgError
from ag.names.elsewhere import TENSOR

A = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def world() -> dict[str, Any]:
    """Return the names that the lines use."""
    model = ag.nn.Sequential(ag.nn.Linear(2, 3, activation="relu"), ag.nn.Linear(3, 2))
    model[0].W.data, model[1].W.data = np.ones((3, 2)), np.ones((2, 3))
    return {"ag": ag, "nn": ag.nn, "ops": ag.ops, "optim": ag.optim, "data": ag.data, "np": np, "math": math,
            "copy": copy, "pickle": pickle, "A": A, "t": ag.ag_tensor(A), "u": ag.ag_tensor(A * 2),
            "s": ag.ag_tensor(1.5), "i": ag.ag_tensor(3, dtype="i32"), "model": model,
            "opt": ag.optim.Adam(model.parameters(), lr=0.5),
            "loader": ag.data.DataLoader(np.ones((2, 6)), np.arange(6), batch_size=4, shuffle=False),
            "batch": ag.Batch(ag.ag_tensor(A), np.arange(2))}


WORKS: dict[str, object] = {
    # formatting, comparing, rounding
    'f"{s:.4f}"': "1.5000", 'f"{s:>6.1f}"': "   1.5", "float(s)": 1.5, "int(s)": 1, "bool(s)": True, "round(s)": 2,
    "round(s, 1)": 1.5, "s < 2": True, "s == 1.5": True, "s.item() + 1": 2.5, "min([s, ag.ag_tensor(0.5)]).item()": 0.5,
    "max(s, ag.ag_tensor(0.5)).item()": 1.5, "sorted([s, ag.ag_tensor(0.5)])[0].item()": 0.5, "sum([s, s]).item()": 3.0,
    "math.exp(s)": math.exp(1.5), "(t > 2).sum()": 2, "(t == A).all()": True, "4.0 in t": True,
    "abs(-s).item()": 1.5, "{s: 1}[s]": 1, "len(t)": 2,
    'f"{i:d} {i:03d} {i:.1f}"': "3 003 3.0", "repr((i.item(), float(i), round(i)))": "(3, 3.0, 3)",
    # axes
    "t.sum(axis=0)": A.sum(0), "t.mean(axis=-1, keepdims=True)": A.mean(-1, keepdims=True),
    "t.sum(dim=1, keepdim=True)": A.sum(1, keepdims=True), "ops.max(t, axis=1)": A.max(1),
    "ops.sum(t, axis=(0, 1), keepdims=True)": A.sum(keepdims=True), "ops.softmax(t, axis=0).sum(axis=0)": [1.0, 1.0],
    "ops.log_softmax(t, axis=-1).shape": (2, 2), "ops.concat([t, u], axis=1)": np.concatenate([A, A * 2], 1),
    "ag.gather(ag.scatter(t, ['cpu', 'cpu:1'], axis=0), 'cpu', axis=0)": A,
    # numpy's functions
    "np.exp(t)": np.exp(A), "np.mean(t)": 2.5, "np.sum(t, axis=0)": A.sum(0), "np.sqrt(np.abs(-t))": np.sqrt(A),
    "np.max(t, 1)": A.max(1), "np.min(t, axis=0)": A.min(0), "np.clip(t, 2, 3)": A.clip(2, 3),
    "np.maximum(t, 2.5)": np.maximum(A, 2.5), "np.minimum(2.5, t)": np.minimum(A, 2.5), "np.square(t)": A**2,
    "np.power(t, 3)": A**3, "np.concatenate([t, A])": np.concatenate([A, A]),
    "np.stack([t, u], axis=-1)": np.stack([A, 2 * A], -1), "np.transpose(t)": A.T, "np.swapaxes(t, 0, 1)": A.T,
    "np.reshape(t, (4, 1))": A.reshape(4, 1), "np.reshape(t, np.int64(4))": A.reshape(4),
    "np.ravel(t)": A.ravel(), "np.squeeze(t[None])": A,
    "np.expand_dims(t, 1)": A[:, None], "np.dot(t, t)": A @ A, "np.matmul(A, t)": A @ A, "A + t": A + A,
    "A - t * np.float64(2)": -A, "np.float32(2) / t": 2 / A, "A @ t": A @ A, "A > t": A > A, "np.less(A, u)": A < 2 * A,
    "np.tanh(t)": np.tanh(A), "np.argmax(t, axis=0)": A.argmax(0), "np.isnan(t).any()": False, "np.shape(t)": (2, 2),
    "np.allclose(t, A)": True, "np.linalg.norm(t)": np.linalg.norm(A), "np.where(t > 2, t, 0)": np.where(A > 2, A, 0),
    "t // 2": A // 2, "t % 2": A % 2, "2 ** t": 2**A, "t ** t": A**A, "ops.where(t > 2, t, 0)": np.where(A > 2, A, 0),
    "np.asarray(t)": A, "np.array([s, s])": [1.5, 1.5], "np.add.reduce(t)": A.sum(0),
    "np.round(t / 3, 1)": (A / 3).round(1),
    # copies, pickles, batches
    "copy.deepcopy(t)": A, "pickle.loads(pickle.dumps(t))": A,
    "copy.deepcopy(model)(t)": (A.sum(0) * 3)[None].repeat(2, 0),
    "pickle.loads(pickle.dumps(model))(t)": (A.sum(0) * 3)[None].repeat(2, 0),
    "copy.deepcopy((model, opt))[1].lr": 0.5, "pickle.loads(pickle.dumps(batch)).y": [0, 1],
    "[(x.shape, len(y)) for x, y in loader]": [((2, 4), 4), ((2, 2), 2)], "(lambda x, y: y)(*batch)": [0, 1],
    "batch[0]": A, "t[0, -1].item()": 2.0, "[row.shape for row in t]": [(2,), (2,)],
    # ordinary names
    "nn.Linear is ag.ag_linear": True, "optim.AdamW is ag.optimizer_adamw": True, "ops.softmax is ag.ag_softmax": True,
    "data.DataLoader is ag.ag_dataloader": True, "nn.eval(model).training": False,
    # what an interpreter shows
    "loader": "DataLoader(6 samples in 2 batches, batch_size=4, shuffle=False, drop_last=False, prefetch=0)",
    "opt": "Adam(4 parameters, lr=0.5, beta1=0.9, beta2=0.999, eps=1e-08)",
    "ag.ag_capture(lambda x: x)": "<captured step <lambda>, 0 programs recorded>",
    "ag.ag_device('cpu')": "<now 'cpu', before 'cpu'>", "ag.ag_dtype('f32')": "<now 'f32', before 'f32'>",
}

ANSWERED: dict[str, str] = {
    # arguments that are not there
    "ag.dp_train(model, [], epochs=3)": "dp_train: there is no argument 'epochs'; write n_iter, a number of steps",
    "ag.dp_train(model, [], batch_size=3)": "write batch", "ag.dp_train(model, [], model=model)": "write make_model",
    "ag.dp_train(model, [], acumulate=3)": "did you mean 'accumulate'?",
    "ag.dp_train(model, [], xyzzy=3)": "its arguments are make_model, data, loss_fn",
    "optim.Adam(model, weight_decay=0.1)": "optimizer_adam: there is no argument 'weight_decay'; write ag.optim.AdamW",
    "optim.Adam(model, betas=(0.9, 0.9))": "write beta1=0.9, beta2=0.999", "optim.Adam(model, learning_rate=1)": "lr",
    "optim.AdamW(model, momentum=0.9)": "ag.optim.SGD(", "optim.SGD(model, momentun=0.9)": "did you mean 'momentum'?",
    "ag.fit(model, (A, A), validation_data=(A, A))": "fit: there is no argument 'validation_data'; write valid=(X, y).",
    "ag.fit(model, (A, A), validation_split=0.2)": "ag.data.split(", "ag.fit(model, (A, A), epoch=3)": "'epochs'?",
    "ag.fit(model, (A, A), lr=0.1, optimizer=optim.Adam)": "fit: lr is 0.1 and optimizer is given",
    "nn.Conv2d(3, 4, kernel_size=3)": "Conv2d: there is no argument 'kernel_size'; write kernel.",
    "nn.Linear(2, 2, device='cpu')": 'layer.to("vulkan:0")',
    "data.DataLoader(A, num_workers=2)": "ag_dataloader: there is no argument 'num_workers'; write prefetch=2",
    # files that somebody takes for what is in them
    "nn.linear(2, 2)": "ag.nn.linear is a file, and no function; did you mean ag.nn.Linear (also ag.ag_linear)?",
    "data.dataloader(A)": "ag.data.DataLoader", "optim.RMSprop(model)": "ag.optim.SGD",
    "nn.Dense(3)": "write ag.nn.Linear(",
    # names that are not there
    "ag.Linera": "did you mean ag.nn.Linear (also ag.ag_linear)?", "nn.Liner": "did you mean ag.nn.Linear",
    "ag.relu(t)": "did you mean ag.ag_relu (also ag.ops.relu)?", "ag.tensor([1.0])": "ag.ag_tensor",
    "ag.zeros((2, 2))": "ag.ops.zeros", "nn.Module": "ag.nn.Layer", "nn.Activation('relu')": "activation=",
    "t.cumsum(0)": "t.numpy().cumsum()", "nn.LSTM(2, 2)": "ag.nn.Layer",
    "ag.Tensor.cuda": "ag.ag_to_device", "t.cuda()": "ag.ag_to_device", "s.backward()": "ag.backward(loss)",
    "t.view(4)": "t.reshape", "t.gelu()": "ag.ops.gelu(t)", "t.add_(1)": "t.data = ",
    "t.shap": "'shape'", "model.cuda()": "model.to(", "model[0].weight": "called W",
    "opt.param_groups": "optimizer.params",
    # ML Odyssey's and ResNetImageNet.jl's
    "ag.prepare_training(model)": "ag.start(", "ag.train_solutions('.')": "ag.data.imagenet.train_solutions",
    "batch.data": "Batch: there is no 'data'; write batch.x.",
    "ag.DataParallel(model).devices": "did you mean 'device_ids'?",
    "ag.DataParallel(model).model_replicas": "DataParallel: there is no 'model_replicas'; a Data",
    "ag.DataParallel(model).all_reduce_gradients()": "nothing is needed", "ag.DataParallel(model).replicas": "dir()",
    "ag.CompressedDataParallel(model).sync_gradients()": "nothing is needed",
    "ag.DistributedWorld.init(backend='nccl', num_devices=4)": "Write 'mpi' instead of 'nccl'",
    "ag.DistributedWorld.init(devices=['cuda:3'])": "Write 'vulkan:3' instead of 'cuda:3'",
    "ag.ModelParallel({'conv': 'cpu'}, {'conv': model})": "as in ModelParallel(layers, device_map).",
    "ag.ModelParallel({'conv': model}, {'gpu0': 'cpu'})": "it has the device of each layer, as in {'conv': 'cpu'}.",
    "ag.train_distributed(ag.DataParallel(model), loader, ag.DistributedWorld.init(devices=['cpu']))": "give loss_fn",
    "ag.ag_save_checkpoint(model, opt, 3, 'checkpoint.bin')": "ag_save_checkpoint(path, model, optimizer)",
    "ag.ZeroOptimizer(model, ['cpu', 'cpu:1'])": "ZeroOptimizer: optimizer is a list; a function that makes one",
    "ag.ag_load_checkpoint(model, 'checkpoint.bin')": "path is a Sequential; the name of a file is required",
    "optim.SGD(model, 0.1, 0.9, dampening=0.5)": "leave it out: there is none",
    # what cannot be done
    'f"{t:.4f}"': "t.numpy()", "int(t)": "one element", "bool(t)": ".any()",
    "t.__setitem__(0, 1)": "t.data = x", "operator.delitem(t, 0)": "ag.ops.concat([t[:2], t[3:]])",
    "np.asarray(t, copy=False)": "copy=False was given", "np.add(t, 1, out=A.copy())": "x = x + t",
    "operator.iadd(A.copy(), t)": "x = x + t", "np.add.at(t, 0, 1)": "x + t", "np.copyto(t, A)": "t.numpy()",
    "ops.sum(t, dim=0, axis=0)": "give one of them", "t.sum(0, axis=0)": "give one of them",
    "ops.softmax(t, dims=0)": "did you mean 'dim'?", "ag.scatter(t, ['cpu'], 0, axis=0)": "give one of them",
    "copy.copy(opt)": "copy.deepcopy((model, optimizer))", "pickle.dumps(ag.ag_capture(lambda x: x))": "the function",
    # wrong arguments
    "ag.ag_checkpoint('run.safetensors', model)": "ag_save_checkpoint", "ag.Tensor([1.0])": "ag_tensor(values)",
    "opt.step(s)": "what backward returned", "ag.backward(1.0)": "ag_tensor",
    "ag.optim.Adam(model, lr='a')": "a finite number", "ag.optim.Adam(model.parameters)": "model.parameters()",
    "ag.ag_dataloader(np.ones((6, 2)), np.arange(6))": "col_major=False", "ag.ag_capture(3)": "a function",
    "ag.with_grad_tape(3)": "a function", "nn.Sequential(nn.Linear(2, 2), ops.exp)": "ag.ops.relu",
    "nn.Sequential(nn.Linear)": "Linear(...)", "nn.Linear(2, 2, activation='rellu')": "relu",
    "ag.dp_train(model, [A])": "a function that returns a new model",
    "ag.dp_train(lambda: model, (np.ones((2, 8)), np.arange(8)), ops.mse_loss, devices=['cpu'])": "ag_dataloader(x, y)",
    "ag.dp_train(lambda: model, [A], ops.mse_loss, optimizer=opt)": "lambda params",
    "ag.dp_train(lambda: model, [A], ops.mse_loss, devices='cpu')": "['cpu', 'cpu:1']",
}


@pytest.mark.parametrize("line", WORKS)
def test_it_works(line: str) -> None:
    found, expected = eval(line, world()), WORKS[line]
    if isinstance(expected, str):
        assert (found if type(found) is str else repr(found)) == expected
    elif isinstance(found, (ag.Tensor, np.ndarray, float)):
        assert np.shape(found) == np.shape(expected)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    else:
        assert found == expected


@pytest.mark.parametrize("line", ANSWERED)
def test_it_is_answered(line: str) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError, AgError)) as caught:
        eval(line, world() | {"operator": operator})
    message = str(caught.value)
    assert ANSWERED[line] in message and message.endswith((".", "?")) and len(message) < 400 and "\n" not in message


def test_what_answers_advise_for_tensors_works() -> None:
    names = world() | {"u": ag.ag_tensor(np.eye(3)), "ids": [0, 1], "loss": None, "devices": ["cpu"], "model": None}
    for text in TENSOR.values():
        advice = re.fullmatch(r"write (t\.astype\(.*\)|ag\.ag_tensor\(t.*\)|t\.numpy\(\)\.[^,;]*)[,;]?.*", text)
        if advice is not None:
            assert eval(advice[1].split(", which")[0].split(", or")[0], names) is not None, text


def test_a_property_that_fails_says_why() -> None:
    class Broken(ag.nn.Layer):
        @property
        def rate(self) -> float:
            return self.settings.nothing  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="'tuple' object has no attribute 'nothing'"):
        _ = Broken().rate


def test_asking_whether_there_is_a_name_works() -> None:
    t = ag.ag_tensor(A)
    assert not hasattr(t, "cuda") and not hasattr(t, "__array_interface__") and getattr(ag, "nothing", 1) == 1
    assert not hasattr(ag.nn, "Dense") and not hasattr(ag.nn.Linear(1, 1), "fit") and not hasattr(ag.Tensor, "cuda")


PICKLED = pickle.dumps(ag.ag_tensor(A))
READS: dict[str, Callable[[ag.Tensor], object]] = {
    "item": lambda t: t.sum().item(), "float": lambda t: float(t.sum()), "int": lambda t: int(t.sum()),
    "bool": lambda t: bool(t.sum()), "format": lambda t: f"{t.sum():.2f}", "round": lambda t: round(t.sum(), 1),
    "less": lambda t: bool(t.sum() < 2.0), "equal": lambda t: 1 if t[0, 0] == t[0, 0] else 0, "in": lambda t: 1.0 in t,
    "min": lambda t: min(t.sum(), t.mean()), "asarray": np.asarray, "numpy's own": np.std, "argmax": np.argmax,
    "any": lambda t: np.any(t > 1.0), "pickle": pickle.dumps,
    "save": lambda t: np.save(io.BytesIO(), t),
    "unpickle": lambda t: pickle.loads(PICKLED),
}


@pytest.mark.parametrize("name", READS)
def test_reading_in_a_captured_step_is_refused(name: str, device: str) -> None:
    def step(t: ag.Tensor) -> ag.Tensor:
        READS[name](t)
        return t * 2.0

    with pytest.raises(ag.CaptureError, match=r"the step (reads|unpickles) a tensor"):
        ag.ag_capture(step)(ag.ag_tensor(A))


NUMPYS: dict[str, tuple[Callable[[Any], Any], Callable[[ag.Tensor], ag.Tensor]]] = {
    "exp": (np.exp, ag.ops.exp), "mean": (lambda x: np.mean(x, axis=0), lambda x: ag.ops.mean(x, dim=0)),
    "max": (lambda x: np.max(x, 1), lambda x: ag.ops.max(x, 1)), "square": (np.square, lambda x: x * x),
    "clip": (lambda x: np.clip(x, 2, 3), lambda x: ag.ops.clamp(x, 2.0, 3.0)),
    "maximum": (lambda x: np.maximum(2.5, x), lambda x: ag.ops.clamp(x, lo=2.5)),
    "min": (np.min, lambda x: -ag.ops.max(-x)), "power": (lambda x: np.power(x, 3), lambda x: x**3),
    "stack": (lambda x: np.stack([x, x * 2.0]), lambda x: ag.ops.concat([x[None], (x * 2.0)[None]])),
    "concatenate": (lambda x: np.concatenate([x, x], axis=1), lambda x: ag.ops.concat([x, x], dim=1)),
    "transpose": (np.transpose, lambda x: x.T), "dot": (lambda x: np.dot(x, x), lambda x: x @ x),
    "array first": (lambda x: np.subtract(2.0, x), lambda x: 2.0 - x), "ravel": (np.ravel, lambda x: x.reshape(-1)),
}


@pytest.mark.parametrize("name", NUMPYS)
def test_numpys_functions_are_recorded_and_replayed(name: str, device: str) -> None:
    theirs, ours = NUMPYS[name]
    results = []
    for f in (theirs, ours):
        W = ag.ag_param(A)

        def step(x: ag.Tensor, f: Callable[[Any], Any] = f, W: ag.Tensor = W) -> tuple[ag.Tensor, ag.Tensor]:
            with ag.with_grad_tape():
                y = f(W * x)
                loss = ag.ops.sum(y * y)
            return y, ag.backward(loss)[W]

        captured = ag.ag_capture(step)
        results.append([x.numpy().tobytes() for k in range(4) for x in captured(ag.ag_tensor(A + k))])
        W.grad = None
        results[-1] += [x.numpy().tobytes() for x in step(ag.ag_tensor(A))]
    assert results[0] == results[1]
    assert results[0][:2] == results[0][-2:]


@pytest.mark.parametrize("function", [np.std, np.linalg.norm, np.cbrt, np.add.reduce,
                                      lambda W: np.einsum("ij->i", W), lambda W: np.exp(W, dtype=np.float64)])
def test_no_gradient_is_lost_in_numpy(function: Callable[[Any], Any]) -> None:
    W = ag.ag_param(A)
    with ag.with_grad_tape(), pytest.raises(TypeError, match="the gradient would be lost"):
        function(W)
    assert isinstance(function(W), (np.ndarray, np.generic))  # nothing is recorded here
    with ag.with_grad_tape():
        assert isinstance(function(ag.ag_tensor(A)), (np.ndarray, np.generic))


@pytest.mark.parametrize("make", [lambda ts: np.sum(ts), lambda ts: np.array(ts), lambda ts: np.asarray(ts[0])])
def test_numpy_makes_no_array_of_a_tensor_whose_gradient_would_be_lost(make: Callable[[Any], Any]) -> None:
    W, plain = ag.ag_param([[2.0]]), ag.ag_tensor([[1.0]])
    with ag.with_grad_tape():
        losses = [ag.ag_sum(W * W), ag.ag_sum(W * 3.0)]
        with pytest.raises(TypeError, match=r"numpy: .* the gradient would be lost"):
            make(losses)
        assert make([plain, plain]).size and make([x.detach() for x in losses]).size
        W.data = ag.ag_scale(W, 2.0)
    assert make(losses).size and W.item() == 4.0


def test_arrays_of_a_captured_step_beside_tensors() -> None:
    step = ag.ag_capture(lambda a, t: a * t + np.subtract(a, t))
    for k in range(4):
        a = A + k
        np.testing.assert_allclose(step(a, ag.ag_tensor(A)).numpy(), a * A + a - A)


def test_arguments_of_a_captured_step_have_no_names() -> None:
    with pytest.raises(TypeError, match="x was given by name"):
        ag.ag_capture(lambda x: x * 2.0)(x=ag.ag_tensor(A))


def test_ids_in_a_captured_step_say_what_to_pass() -> None:
    layer, ids = ag.nn.Embedding(8, 2), ag.ag_tensor(np.arange(3), dtype="i32")
    assert ag.ag_capture(lambda x: layer(ids.reshape(3)) + x)(ag.ag_tensor(np.ones((2, 3)))).shape == (2, 3)
    with pytest.raises(ag.CaptureError, match=r"as an argument, or take weight\[:, :n\]"):
        ag.ag_capture(lambda x: layer(np.arange(3)) + x)(ag.ag_tensor(np.ones((2, 3))))
    with pytest.raises(ag.CaptureError, match=r"labels are a tensor.* as a numpy array\.$"):
        ag.ag_capture(lambda x: ag.ops.softmax_cross_entropy_loss(x, ids))(ag.ag_tensor(np.ones((3, 3))))


def test_weights_come_out_of_every_checkpoint(tmp_path: Path) -> None:
    def make() -> ag.nn.Sequential:
        return ag.nn.Sequential(ag.nn.Linear(2, 2), ag.nn.BatchNorm(2))

    model, path = make(), str(tmp_path / "run.safetensors")
    ag.ag_save_checkpoint(path, model, ag.optim.Adam(model.parameters()), step=3)
    with pytest.raises(ag.CheckpointError, match="pass the model_fn"):
        ag.ag_load_model(path)
    loaded = ag.ag_load_model(path, make)
    assert not loaded.training
    for name, values in model.state_dict().items():
        np.testing.assert_array_equal(loaded.state_dict()[name], values)
    trained = str(tmp_path / "trained.safetensors")
    result = ag.dp_train(make, [np.ones((2, 1), np.float32) * k for k in range(4)], ag.ops.mse_loss, devices=["cpu"],
                         n_iter=2, batch=4, stack=4, verbose=False, checkpoint=trained)
    again = ag.ag_load_model(trained, make)
    for name, values in result.model.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name], values)
    with pytest.raises(ag.CheckpointError, match="Read it with dp_train"):
        ag.ag_load_checkpoint(trained, make())
    ag.ag_save_model(model, path)
    with pytest.raises(ag.CheckpointError, match="Read it with ag_load_model"):
        ag.ag_load_checkpoint(path, model)


@pytest.mark.slow
def test_a_spawned_process_computes_with_a_pickled_model() -> None:
    model, x = ag.nn.Linear(2, 2), ag.ag_tensor(A)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply_async(operator.methodcaller("forward", x), (model,)).get(timeout=120)
    assert there.numpy().tobytes() == model(x).numpy().tobytes()


def test_arrays_of_ml_dtypes_are_taken() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = (A * 1.37).astype(ml_dtypes.bfloat16)
    t = ag.ag_tensor(values, dtype="bf16")
    assert np.asarray(t, dtype=ml_dtypes.bfloat16).tobytes() == values.tobytes()
    assert ag.ag_tensor([1.0], dtype=ml_dtypes.bfloat16).dtype == "bf16" and (t == values).all()
    exact = values.astype(np.float32)
    np.testing.assert_array_equal((ag.ag_tensor(A) + values).numpy(), A + exact)
    np.testing.assert_array_equal((values + ag.ag_tensor(A)).numpy(), A + exact)
    np.testing.assert_array_equal(next(iter(ag.data.DataLoader(values, shuffle=False))).x.numpy(), exact)
    t.data = values * 2
    np.testing.assert_array_equal(t.numpy(), exact * 2)
    layer = ag.nn.Linear(2, 2, bias=False)
    layer.load_state_dict({"W": values})
    np.testing.assert_array_equal(layer.W.numpy(), exact)


def test_joblib_carries_models(tmp_path: Path) -> None:
    joblib = pytest.importorskip("joblib")
    model = ag.nn.Sequential(ag.nn.Linear(2, 2))
    joblib.dump(model, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(again(A).numpy(), model(A).numpy())
    assert joblib.hash(again) == joblib.hash(model)


def test_no_grad_decorates_functions() -> None:
    W = ag.ag_param(A)

    @ag.no_grad()
    def scores(x: object, again: int = 0) -> ag.Tensor:
        """Without a gradient."""
        return scores(W * 2.0, again - 1) if again else W * 2.0

    assert scores.__doc__ == "Without a gradient."
    with ag.with_grad_tape():
        assert not scores(A, again=2).requires_grad and (W * 2.0).requires_grad
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            assert not any(y.requires_grad for y in pool.map(scores, [A] * 8))
        assert (W * 2.0).requires_grad

    @ag.with_grad_tape()
    def loss() -> ag.Tensor:
        return ag.ops.sum(W * W)

    np.testing.assert_array_equal(ag.backward(loss())[W].numpy(), 2 * A)
    with pytest.raises(TypeError, match="goes on after its call; write `with` inside it"):
        @ag.no_grad()
        def batches() -> Iterator[ag.Tensor]:
            yield W * 2.0


def test_a_decorated_function_in_a_captured_step(device: str) -> None:
    with ag.ag_device(device):
        W = ag.ag_param(A)
        factor = {"value": 2.0}

        @ag.no_grad()
        def scaled(x: ag.Tensor) -> ag.Tensor:
            return x * factor["value"]

        def step(x: ag.Tensor) -> ag.Tensor:
            with ag.with_grad_tape():
                loss = ag.ops.sum(W * scaled(W) * x)
            return ag.backward(loss)[W]

        captured = ag.ag_capture(step)
        for k in range(6):
            factor["value"] = 2.0 if k < 4 else 3.0
            np.testing.assert_array_equal(captured(ag.ag_tensor(A + k)).numpy(), A * (A + k) * factor["value"])
        assert str(inspect.signature(captured)) == "(x: 'ag.Tensor') -> 'ag.Tensor'"
