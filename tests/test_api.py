"""Check the public API, name by name: `SIGNATURES` was written from the design of the API, not from the package.
The table `DIFFERS` gives the reason for every signature that was changed on purpose."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import pytest
from numpydoc.docscrape import ClassDoc, FunctionDoc
from table.optimizers import OPTIMIZERS

import ag

SIGNATURES: dict[str, str] = dict(re.findall(r"([\w.]+)\((.*?)\)", """
ag_tensor(data, device=None, dtype=None) ag_param(data, device=None, dtype=None) is_ag_tensor(x)
with_grad_tape(fn=None) backward(loss, retain=False) no_grad()
ag_device(name) ag_default_device() ag_dtype(name) ag_default_dtype() ag_to_device(t, device)
ag_vulkan_device_count() ag_vulkan_devices() ag_vulkan_status()
ggml_vulkan_device_count() ggml_vulkan_list_devices() ggml_vulkan_status()
ag_seed(seed) ag_gradcheck(fn, inputs, eps=1e-5, atol=1e-4, rtol=1e-3, verbose=False, quiet=False)
ag_capture(step_fn, *, recompute=False) ag_synchronize(device=None) ag_shutdown()

ag_matmul(A, B) ag_add(A, B) ag_sub(A, B) ag_mul(A, B) ag_div(A, B) ag_scale(x, scalar) ag_pow(x, p)
ag_exp(x) ag_log(x) ag_sqrt(x) ag_abs(x) ag_relu(x) ag_sigmoid(x) ag_tanh(x) ag_gelu(x, ...) ag_silu(x)
ag_leaky_relu(x, slope=0.01) ag_clamp(x, lo=-inf, hi=inf) ag_softmax(x, dim=0) ag_log_softmax(x, dim=0)
ag_sum(x, dim=None, keepdim=False) ag_mean(x, dim=None, keepdim=False) ag_max(x, dim=None, keepdim=False)
ag_reshape(x, *shape) ag_transpose(x, *axes) ag_concat(tensors, dim=0) ag_slice(...) ag_flatten(x)
ag_embedding_lookup(weight, idx)
ag_conv2d(x, w, b=None, stride=1, padding=0, dilation=1, groups=1)
ag_max_pool2d(x, size, stride=None, padding=0) ag_avg_pool2d(x, size, stride=None, padding=0) ag_global_avg_pool(x)
ag_layer_norm_op(...) ag_rms_norm_op(x, gamma, eps=1e-6) ag_batch_norm_op(...)
ag_attention(q, k, v, causal=False, dropout=0.0)
ag_mse_loss(pred, target, *, sample_weight=None, reduction='mean') ag_cross_entropy_loss(pred, target)
ag_softmax_cross_entropy_loss(logits, target, *, weight=None, label_smoothing=0.0, sample_weight=None)
ag_bce_with_logits_loss(logits, target, *, weight=None, pos_weight=None, sample_weight=None)

ag_linear(in_features, out_features, activation=None, bias=True) ag_sequential(*layers) ag_dropout(rate)
ag_batch_norm(num_features, eps=1e-5, momentum=0.1) ag_layer_norm(num_features, eps=1e-5)
ag_rms_norm(num_features, eps=1e-6)
ag_embedding(vocab_size, dim) ag_multihead_attention(d_model, n_heads, dropout=0.0, bias=True)
ag_multihead_attention.forward(self, q, k=None, v=None, causal_mask=False)
ag_conv2d_layer(in_ch, out_ch, kernel, stride=1, padding=0, activation=None, bias=True)
ag_max_pool(...) ag_avg_pool(...) ag_global_pool() ag_flatten_layer()
ag_residual(body, shortcut=None, activation=None) ag_train(model) ag_eval(model)
Layer.forward(self, x) Layer.parameters(self) Layer.params(self) Layer.buffers(self) Layer.state_dict(self)
Layer.load_state_dict(self, d, strict=True) Layer.to(self, device)

optimizer_sgd(params, lr=0.01, momentum=0.0, weight_decay=0.0, nesterov=False)
optimizer_adam(params, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8)
optimizer_adamw(params, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)
optimizer_adam.step(self, grads=None) optimizer_adam.zero_grad(self)
lr_scheduler_step(optimizer, step_size, gamma=0.1)
lr_scheduler_cosine(optimizer, T_max, lr_min=0.0, restart=False)
lr_scheduler_warmup(optimizer, steps, after=None) clip_grad_norm(params, grads, max_norm)

ag_dataloader(x, y=None, batch_size=32, shuffle=True, col_major=True, drop_last=False, seed=None, prefetch=0)
ag_image_folder(path, size, ...) Batch(x, y)

ag_save_model(model, path, model_fn=None) ag_load_model(path, model_fn=None, device=None)
ag_save_checkpoint(path, model, optimizer=None, scheduler=None, dataloader=None, step=0, extra=None)
ag_load_checkpoint(path, ...)

dp_train(make_model, data, loss_fn=None, forward_fn=None, target_fn=None, n_gpu=None, n_iter=10, lr=1e-3,
         max_norm=inf, verbose=10, *, devices=None, optimizer=None, scheduler=None, micro_batch=1, accumulate=1,
         batch=None, stack="auto", shuffle=True, weight_fn=None, seed=None, balance="equal",
         on_nonfinite="raise", sync_batch_norm=False, capture="auto", checkpoint=None,
         checkpoint_every=None, resume=False, timeout=600.0, world=None, callback=None,
         sample_weight=None, class_weight=None)
DPResult(params, loss_history, loss, model, devices, report)
DataParallel(model, device_ids=None, output_device=None, dim=-1) scatter(tensor, devices, dim=-1)
gather(tensors, device, dim=-1, weights=None) replicate(model, devices)
parallel_apply(models, inputs, kwargs=None, devices=None) SyncBatchNorm(num_features, eps=1e-5, momentum=0.1)
ColumnParallelLinear(in_features, out_features, devices, activation=None, bias=True, weights=None, gather_output=True)
RowParallelLinear(in_features, out_features, devices, activation=None, bias=True, weights=None)
ModelParallel(layers, device_map="auto", devices=None, budgets=None, sample=None)
Pipeline(stages, devices=None, micro_batches=4, schedule="1f1b", dim=-1) Pipeline.step(self, x, y, loss_fn)
CompressedDataParallel(model, device_ids=None, compression_ratio=0.01, ...)
doctor() transport_selftest(...) load_config(path) train_distributed(model, data, world, ...)
DistributedWorld.init(backend="local", num_devices=None, ...)
ZeroOptimizer(model, ...) syncgrads(grad_sets, weights=None, world=None) start(loss, data, model_fn, ...)
""", re.S))

DIFFERS = {  # name: (signature here, why it is not the designed one)
    "ag_dataloader": ("x, y=None, batch_size=32, shuffle=True, col_major=True, drop_last=False, seed=None, prefetch=0, "
                      "*, target=None, inputs=None", "samples may be dicts, of which one entry is the target"),
    "ag_attention": ("q, k, v, causal=False, dropout=0.0, heads=1, *, kv_heads=None, attn_mask=None, attn_bias=None, "
                     "scale=None, window=None, softcap=None, alibi=None, segments=None",
                     "heads side by side need no transposing, and scores have terms"),
    "ag_multihead_attention": ("d_model, n_heads, dropout=0.0, bias=True, *, qkv_bias=False, kdim=None, vdim=None, "
                               "kv_heads=None", "the layers of models from elsewhere have them"),
    "ag_multihead_attention.forward": (
        "self, q, k=None, v=None, causal_mask=False, cache=None, *, attn_mask=None, attn_bias=None, scale=None, "
        "window=None, softcap=None, alibi=None, segments=None",
        "generation computes each position once, and scores have terms"),
    "Layer.state_dict": ("self, frozen=False", "frozen tensors are left out unless they are asked for"),
    "Batch": ("x, y=None", "a loader without targets makes batches without them"),
    "DPResult": ("params, loss_history, loss, model, devices, report, optimizer_state, interrupted=False",
                 "a job can be continued, or compared to the bit, with the optimizer's state, and tells of Ctrl-C"),
    "DataParallel": ("model, device_ids=None, output_device=None, dim=-1, *, axis=None",
                     "axis is numpy's name for dim"),
    "scatter": ("tensor, devices, dim=-1, *, axis=None", "axis is numpy's name for dim"),
    "gather": ("tensors, device, dim=-1, weights=None, *, axis=None", "axis is numpy's name for dim"),
    "Pipeline": ("stages, devices=None, micro_batches=4, schedule='1f1b', dim=-1, *, axis=None",
                 "axis is numpy's name for dim"),
    "ag_max_pool2d": ("x, size, stride=None, padding=0, dilation=1, ceil_mode=False", "PyTorch's arguments"),
    "ag_avg_pool2d": ("x, size, stride=None, padding=0, ceil_mode=False, count_include_pad=True",
                      "PyTorch's arguments"),
    "ag_batch_norm": ("num_features, eps=1e-5, momentum=0.1, affine=True", "PyTorch's argument"),
    "SyncBatchNorm": ("num_features, eps=1e-5, momentum=0.1, affine=True", "PyTorch's argument"),
    "ag_layer_norm": ("num_features, eps=1e-5, elementwise_affine=True, bias=True", "PyTorch's arguments"),
    "ag_rms_norm": ("num_features, eps=1e-6, elementwise_affine=True", "PyTorch's argument"),
    "ag_conv2d_layer": ("in_ch, out_ch, kernel, stride=1, padding=0, activation=None, bias=True, dilation=1, groups=1, "
                        "padding_mode='zeros'", "PyTorch's arguments"),
    "Layer.load_state_dict": ("self, state, strict=True", "the name says what it is"),
    "optimizer_sgd": ("params, lr=0.01, momentum=0.0, *, weight_decay=0.0, nesterov=False",
                      "PyTorch's fourth argument is dampening, which would be taken for weight_decay"),
}

ERRORS = {"AgError": Exception, "ShapeError": ValueError, "DtypeError": TypeError, "DeviceError": RuntimeError,
          "TapeError": RuntimeError, "CaptureError": RuntimeError, "ArenaError": MemoryError,
          "KernelError": RuntimeError, "CommError": RuntimeError, "CheckpointError": ValueError}


def found(name: str) -> Any:
    thing: Any = ag
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]


def written(arguments: str) -> list[inspect.Parameter]:
    return parameters(eval(f"(lambda {arguments}: 0)", {"inf": inf}))  # text of the tables above


def test_signatures() -> None:
    assert DIFFERS.keys() <= SIGNATURES.keys()
    for name, arguments in SIGNATURES.items():
        if name in DIFFERS:
            designed, (arguments, reason) = arguments, DIFFERS[name]
            assert reason and written(arguments) != written(designed), f"DIFFERS is out of date: {name}"
        here = parameters(found(name))
        wanted = written(arguments.removesuffix("...").rstrip(", "))
        if arguments.endswith("..."):  # the design leaves the rest open
            here = here[: len(wanted)]
        assert here == wanted, f"{name}({', '.join(map(str, here))}) instead of {name}({arguments})"


def test_everything_designed_is_public() -> None:
    designed = {name.split(".")[0] for name in SIGNATURES} | ERRORS.keys()
    assert designed <= set(ag.__all__)
    assert len(ag.__all__) == len(set(ag.__all__))


def documented(name: str) -> list[tuple[str, str]]:
    """Name and type of each parameter in the docstring; none for a class that only the library makes."""
    thing = found(name)
    page = (ClassDoc if inspect.isclass(thing) else FunctionDoc)(thing)
    return [(one.strip().lstrip("*"), p.type) for p in page["Parameters"] for one in p.name.split(",")]


def test_docstrings_have_the_signatures() -> None:
    """Derived for every public name: the same parameters in the same order, and which may be left out."""
    for name in [n for n in ag.__all__ if inspect.isfunction(found(n)) or documented(n)]:
        here, there = parameters(found(name)), documented(name)
        assert [p.name for p in here] == [one for one, _ in there], name
        for p, (_, kind) in zip(here, there, strict=True):
            said = "optional" in kind or "default" in kind
            assert said is (p.default is not p.empty), f"{name}: {p} is documented as {kind!r}"


def test_ggmlr_names_are_the_same_functions() -> None:
    assert ag.ggml_vulkan_device_count is ag.ag_vulkan_device_count
    assert ag.ggml_vulkan_list_devices is ag.ag_vulkan_devices
    assert ag.ggml_vulkan_status is ag.ag_vulkan_status


def test_errors() -> None:
    for name, base in ERRORS.items():
        assert issubclass(getattr(ag, name), ag.AgError) and issubclass(getattr(ag, name), base), name


def optimizer() -> Any:
    return ag.optimizer_adam([ag.ag_param([[1.0]])])


def result() -> ag.DPResult:
    return ag.dp_train(lambda: ag.ag_linear(1, 1), [np.ones((1, 1), np.float32)], ag.ag_mse_loss, devices=["cpu"],
                       n_iter=1, verbose=False)


SCHEDULE = "step get_lr state_dict load_state_dict"
LOADER = "epoch reset has_next next_batch n_batches order state_dict load_state_dict __len__ __iter__"
METHODS = "step zero_grad lr t state_dict load_state_dict"
MEMBERS: dict[str, tuple[Callable[[], Any], str]] = {
    "Tensor": (lambda: ag.ag_param([[1.0]]), """
        id shape ndim size dtype device requires_grad grad data T numpy item __float__ __len__ __repr__ __array__
        __dlpack__ __dlpack_device__ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__
        __matmul__ __rmatmul__ __pow__ __neg__ __getitem__ reshape sum mean detach"""),
    "a layer": (lambda: ag.ag_linear(2, 1), """
        forward __call__ parameters params buffers state_dict load_state_dict to training __repr__"""),
    **{row.name: (lambda row=row: row.make([ag.ag_param([[1.0]])]), METHODS) for row in OPTIMIZERS},
    "lr_scheduler_step": (lambda: ag.lr_scheduler_step(optimizer(), 1), SCHEDULE),
    "lr_scheduler_cosine": (lambda: ag.lr_scheduler_cosine(optimizer(), 1), SCHEDULE),
    "lr_scheduler_warmup": (lambda: ag.lr_scheduler_warmup(optimizer(), 1), SCHEDULE),
    "ag_dataloader": (lambda: ag.ag_dataloader(np.ones((2, 3))), LOADER),
    "Batch": (lambda: ag.Batch(ag.ag_tensor([[1.0]])), "x y"),
    "DPResult": (result, "params loss_history loss model devices report __getitem__"),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_members(name: str) -> None:
    make, members = MEMBERS[name]
    thing = make()
    assert not [m for m in members.split() if not hasattr(thing, m)]


def test_image_folder_is_a_loader() -> None:
    assert not [m for m in LOADER.split() if m != "order" and not hasattr(ag.ag_image_folder, m)]


LAYERS: dict[str, tuple[Callable[[], Any], dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]] = {
    "ag_linear": (lambda: ag.ag_linear(3, 2), {"W": (2, 3), "b": (2, 1)}, {}),
    "ag_batch_norm": (lambda: ag.ag_batch_norm(3), {"gamma": (3, 1), "beta": (3, 1)},
                      {"running_mean": (3, 1), "running_var": (3, 1)}),
    "ag_layer_norm": (lambda: ag.ag_layer_norm(3), {"gamma": (3, 1), "beta": (3, 1)}, {}),
    "ag_rms_norm": (lambda: ag.ag_rms_norm(3), {"gamma": (3, 1)}, {}),
    "ag_embedding": (lambda: ag.ag_embedding(7, 2), {"weight": (2, 7)}, {}),
    "ag_conv2d_layer": (lambda: ag.ag_conv2d_layer(2, 3, 5), {"W": (3, 2, 5, 5), "b": (3, 1)}, {}),
    "ag_sequential": (lambda: ag.ag_sequential(ag.ag_linear(3, 2), ag.ag_linear(2, 1)),
                      {"layer1_W": (2, 3), "layer1_b": (2, 1), "layer2_W": (1, 2), "layer2_b": (1, 1)}, {}),
    "ag_sequential of one list": (lambda: ag.ag_sequential([ag.ag_linear(3, 2)]),
                                  {"layer1_W": (2, 3), "layer1_b": (2, 1)}, {}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_names_and_shapes_of_parameters(name: str) -> None:
    make, trained, kept = LAYERS[name]
    layer = make()
    assert {k: p.shape for k, p in layer.parameters().items()} == trained
    assert {k: p.shape for k, p in layer.buffers().items()} == kept
    if not isinstance(layer, ag.ag_sequential):
        assert all(getattr(layer, k).shape == shape for k, shape in {**trained, **kept}.items())
