"""Names that users of PyTorch, Keras, scikit-learn and ggmlR type: each works, or its answer says what to write.

A row is a line of Python, and what becomes of it: "works", "none" where nothing is like it, or what its answer says.
"""

from __future__ import annotations

import pickle
import re
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from inspect import isfunction, signature
from typing import Any

import numpy as np
import pytest

import ag
from ag.errors import AgError
from ag.names import NAMESPACES, answering, elsewhere, wrong_arguments

WORKS, NONE = "works", "none"  # NONE: the answer names nothing else


def rows(text: str) -> dict[str, str]:
    """Read lines such as ``nn.Module() -> ag.nn.Layer``; names without an expected answer share that of the line."""
    table: dict[str, str] = {}
    for line in text.strip().splitlines():
        names, _, expected = line.strip().rpartition(" -> ")
        for name in names.split(" ; "):
            assert name not in table, name
            table[name.strip()] = expected
    return table


FUNCTIONS = rows("""
    ag.tensor([1.0]) -> ag.ag_tensor(values)
    ag.zeros(3) ; ag.ones(3) ; ag.randn(3, 4) ; ag.rand(2) ; ag.arange(3) ; ag.full((2,), 1.0) -> ag.ops.{name}?
    ag.linspace(0, 1, 5) ; ag.zeros_like(t) ; ag.normal(0, 1) ; ag.multinomial(t, 1) -> ag.ops.{name}?
    ag.empty(2, 2) ; ag.randint(0, 3, (2,)) ; ag.randperm(4) ; ag.eye(3) ; ag.diag(t) -> ag.ops.{name}?
    ag.from_numpy(A) ; ag.as_tensor(A) -> ag.ag_tensor
    ops.zeros(3) ; ops.rand(2, 3) ; ops.multinomial(t, 1, True) ; ops.dropout(t, 0.1) -> works
    ag.manual_seed(0) ; ag.set_random_seed(0) -> ag.ag_seed(0)
    ag.no_grad() -> works
    ag.enable_grad() -> ag.with_grad_tape()
    ag.inference_mode() -> ag.no_grad()
    ag.set_grad_enabled(False) -> ag.no_grad()
    ag.is_grad_enabled() -> none
    ag.is_tensor(t) -> ag.is_ag_tensor(x)
    ag.save(model, "m") -> ag.ag_save_model(model, path)
    ag.load("m") -> ag.ag_load_model(path)
    ag.compile(model) ; ag.jit(model) -> ag.ag_capture(step)
    ag.cat([t, t]) -> ag.ops.concat(tensors, dim=0)
    ag.concat([t, t]) -> ag.ag_concat
    ag.stack([t, t]) ; ag.split(t, 1) ; ag.chunk(t, 2) ; ag.flip(t, 0) ; ag.tile(t, 2) ; ag.triu(t) -> ag.ops.{name}?
    ops.where(t > 0, t, t) ; ops.masked_fill(t, t > 0, 0.0) -> works
    ag.where(t > 0, t, t) -> ag.ops.where
    ops.gather(t, 0, [[0, 1]]) ; ops.scatter(t, 0, [[0]], 1.0) ; ops.index_select(t, 0, [0]) ; ops.take(t, [0]) -> works
    ag.index_select(t, 0, [0]) -> ops.index_select
    ag.topk(t, 2) ; ops.topk(t, 2) ; ag.argsort(t) -> np.argsort
    ag.sort(t) -> np.sort
    ops.argmax(t, 0) -> works
    ag.argmax(t) -> ag.ops.argmax
    ag.exp(t) -> ag.ag_exp
    ag.max(t) -> ag.ag_max
    ag.sum(t) -> ag.ag_sum
    ops.max(t, 0) ; ops.sum(t, axis=0) ; ops.mean(t, dim=0, keepdim=True) ; ops.softmax(t, axis=0) -> works
    ops.clamp(t, 0.0, 1.0) ; ops.concat([t, t], axis=1) ; ops.pow(t, 2) ; ops.abs(t) ; ops.sqrt(t) -> works
    ops.clip(t, 0, 1) -> ag.ops.clamp
    ops.min(t) -> works
    ops.sin(t) ; ops.cos(t) -> works
    ops.cumsum(t, 0) -> np.{name}
    ops.einsum("ij->i", t) -> works
    ops.triu(t) -> works
    ops.floor(t) ; ops.sign(t) ; ops.isnan(t) -> works
    ops.outer(t[0], t[0]) -> works
    ops.tan(t) ; ops.log1p(t) ; ops.log2(t) ; ops.expm1(t) -> works
    ops.std(t) ; ops.var(t) ; ops.norm(t) -> works
    ag.norm(t) -> ag.ops.norm
    ops.maximum(t, 0.0) ; ops.minimum(t, 0.0) -> works
    ops.rsqrt(t) -> works
    ag.mm(t, t) ; ops.mm(t, t) -> a@b
    ag.bmm(t, t) -> ag.ops.bmm
    ag.dot(t, t) -> np.dot
    ops.matmul(t, t) ; ag.ag_matmul(t, t) -> works
    ag.matmul(t, t) -> ag.ag_matmul
    ag.permute(t, 1, 0) ; ag.unsqueeze(t, 0) ; ag.squeeze(t) -> ag.ops.{name}?
    ag.flatten(t) -> ag.ag_flatten
    ops.interpolate(t[..., None], 4) ; ops.unfold(t[None, ..., None], 2) -> works
    ops.grid_sample(t, t) -> none
    ops.pad(t, (1, 1)) -> works
    ops.erf(t) -> works
    ag.vmap(len) -> none
    ag.grad(len) ; ag.value_and_grad(len) ; ag.GradientTape() -> ag.backward(loss)
    ag.stop_gradient(t) -> t.detach()
    ag.Function ; ag.custom_gradient(len) ; ag.custom_vjp(len) ; ag.custom_op(len) -> docs/adding_an_op.md
    ag.float32 ; ag.bfloat16 ; ag.int64 -> dtype="f32"
    ag.device("cuda") -> ag.ag_device("vulkan:0")
    ag.ag_device(device="cuda") ; ag.ag_dtype(dtype="bf16") -> write name
    ag.set_default_device("cuda") -> ag.ag_device("vulkan:0")
    ag.set_default_dtype("bf16") ; ag.autocast() ; ag.GradScaler() -> ag.ag_dtype("bf16")
    ag.cuda.is_available() -> ag.ag_vulkan_devices()
    ag.onnx.export(model, t) -> ag.export_onnx(model, path, example)
    ag.set_num_threads(2) ; ag.backends ; ag.hub ; ag.Size ; ag.use_deterministic_algorithms(True) -> none
    ag.sample(t) -> ag.ops.multinomial(ag.ops.softmax(t), 1)
    ag.ag_reset() ; ag.reset() -> ag.ag_seed(0)
    ops.cross_entropy(t, [0, 1]) ; ops.nll_loss(t, [0, 1]) ; ops.mse_loss(t, t) ; ops.l1_loss(t, t) -> works
    ops.huber_loss(t, t) ; ops.smooth_l1_loss(t, t) ; ops.kl_div(t, t) -> works
    ops.binary_cross_entropy_with_logits(t, t) ; ops.mse_loss(t, t, reduction="sum") -> works
    ops.bce_loss(t, t) -> ag.ops.binary_cross_entropy_with_logits
    ops.bce_with_logits_loss(t, t, reduction="sum") -> a loss is the mean
    ops.one_hot([0, 1]) -> its arguments are ids, classes
    ops.normalize(t) -> works
    ops.adaptive_avg_pool2d(t[None, ..., None], 1) -> works
    ops.conv1d(t[None], weight=t) -> write w
    ops.linear(t, t) -> ag.nn.Linear
    ops.embedding([0], t) -> ag.nn.Embedding
    ops.scaled_dot_product_attention(t, t, t) -> ag.ops.attention(q, k, v)
    ops.softplus(t) ; ops.logsigmoid(t) ; ops.mish(t) -> works
    ops.hardtanh(t) -> works
    ops.relu6(t) -> works
    ops.elu(t) ; ops.selu(t) ; ops.hardswish(t) -> works
    ops.relu(t, inplace=True) -> every result is a new tensor
    ops.gelu(t, approximate="tanh") ; ops.leaky_relu(t) ; ops.log_softmax(t, dim=0) -> works
    ops.leaky_relu(t, negative_slope=0.1) -> write slope
    ops.softmax(t, dims=0) -> did you mean 'dim'?
    ops.sum(t, dimension=0) -> its arguments are x, dim, keepdim
    ops.sum(t, dim=2) -> -2..1. Dims count from 0
    ops.relu(t, t) -> its arguments are x
    ops.flatten(t, start_dim=1) -> its arguments are x
    ag.ag_tensor(A, requires_grad=True) -> ag.ag_param(values)
    ag.backward(s, create_graph=True) -> gradients of gradients are not supported
    ag.backward(s, retain_graph=True) -> write retain
    ag.backward(s) -> Gradients of gradients are not supported
    ag.clip_grad_norm_(model, 1.0) ; optim.clip_grad_value_(model, 1.0) -> ag.clip_grad_norm(params, grads, max_norm)
    ag.ag_checkpoint(len, t, use_reentrant=False) -> leave it out
""")

LAYERS = rows("""
    nn.Module -> ag.nn.Layer
    nn.Linear(2, 2) ; nn.Linear(2, 2, bias=False) ; nn.Linear(2, 2, activation=ops.relu) ; nn.Conv2d(1, 2, 3) -> works
    nn.BatchNorm(2) ; nn.LayerNorm(2) ; nn.RMSNorm(2) ; nn.Dropout(0.1) ; nn.Embedding(3, 2) ; nn.Flatten() -> works
    nn.MultiheadAttention(4, 2) ; nn.Sequential([nn.Linear(2, 2)]) ; nn.Sequential(nn.Linear(2, 2), ops.relu) -> works
    nn.Conv1d(1, 2, 3) ; nn.Conv3d(1, 2, 3) ; nn.ConvTranspose2d(1, 2, 3) ; nn.ConvTranspose1d(1, 2, 3) -> works
    nn.GroupNorm(2, 4) ; nn.InstanceNorm2d(2) ; nn.Upsample(2) ; nn.PixelShuffle(2) ; nn.ZeroPad2d(1) -> works
    nn.LSTM(2, 2) ; nn.GRU(2, 2) ; nn.RNN(2, 2) ; nn.TransformerEncoderLayer(8, 2) -> ag.nn.Layer
    nn.Transformer(8) -> ag.nn.Layer
    nn.RotaryEmbedding(8) ; ops.apply_rotary_pos_emb(t, t) -> ag.ops.rope(q, k, heads=heads)
    nn.BatchNorm1d(2) ; nn.BatchNorm2d(2) -> works
    nn.BatchNormalization() -> ag.nn.BatchNorm(num_features)
    nn.LayerNormalization() -> ag.nn.LayerNorm
    nn.MaxPool2d(2) ; nn.AvgPool2d(2) ; nn.AdaptiveAvgPool2d(1) ; nn.Dropout2d(0.1) ; nn.Unfold(2) -> works
    nn.MaxPooling2D(2) -> ag.nn.MaxPool(size)
    nn.AveragePooling2D(2) -> ag.nn.AvgPool(size)
    nn.GlobalAveragePooling2D() -> ag.nn.GlobalPool()
    nn.ReLU() ; nn.GELU() ; nn.SiLU() ; nn.Sigmoid() ; nn.Tanh() ; nn.ReLU6() ; nn.Softplus() ; nn.Mish() -> works
    nn.LogSigmoid() ; nn.PReLU() ; nn.ELU() ; nn.SELU() ; nn.Hardswish() ; nn.GLU() ; nn.Identity() -> works
    nn.Activation("relu") -> activation="relu"
    nn.ReLU(inplace=True) -> every result is a new tensor
    nn.LeakyReLU(negative_slope=0.1) -> write slope
    nn.Hardtanh(min_val=-1.0) -> write lo
    nn.MaxPool2d(2, return_indices=True) ; nn.MaxPool1d(2, return_indices=True) -> leave it out
    nn.SwiGLU(4) ; ops.swiglu(t) -> compose it of ag.ops
    nn.ModuleList([]) ; nn.ParameterList([]) -> plain list
    nn.ModuleDict({}) -> plain dict
    nn.Parameter(t) -> ag.ag_param(values)
    nn.functional -> ag.ops
    nn.init.xavier_uniform_(t) ; nn.init.normal_(t) -> works
    nn.relu(t) -> ag.ops.relu
    nn.Liner(2, 2) -> did you mean ag.nn.Linear
    nn.linear(2, 2) -> did you mean ag.nn.Linear
    nn.Bilinear(2, 2, 2) -> ag.ops.bilinear
    nn.LazyLinear(2) ; nn.utils -> none
    nn.CosineSimilarity() -> ag.ops.cosine_similarity(t, u)
    nn.CrossEntropyLoss() ; nn.NLLLoss() ; nn.MSELoss() ; nn.L1Loss() ; nn.HuberLoss() ; nn.SmoothL1Loss() -> works
    nn.KLDivLoss() ; nn.BCELoss() ; nn.BCEWithLogitsLoss() -> works
    nn.SparseCategoricalCrossentropy() -> ag.ops.cross_entropy
    nn.MeanSquaredError() -> ag.ops.mse_loss(pred, target)
    nn.DataParallel(model) -> ag.parallel.DataParallel
    nn.Dense(2) -> ag.nn.Linear(in_features, out_features)
    nn.Conv2D(2, 3) -> ag.nn.Conv2d(
    nn.Input((2,)) ; nn.InputLayer((2,)) -> leave it out
    nn.Add() -> ag.ops.add
    nn.Concatenate() -> ag.ops.concat
    nn.Bidirectional(model) ; nn.TimeDistributed(model) ; nn.CTCLoss() -> none
    nn.Model() ; ag.Model() -> ag.nn.Sequential(first, second)
    nn.Conv2d(1, 2, kernel_size=3) -> write kernel
    nn.Conv2d(in_channels=1, out_channels=2, kernel=3) -> write in_ch
    nn.Conv2d(1, 2, 3, padding_mode="reflect", groups=1, dilation=2) ; nn.Conv2d(1, 2, 3, padding="same") -> works
    nn.Linear(2, 2, device="cpu") -> layer.to("vulkan:0")
    nn.Linear(2, 2, dtype="bf16") -> ag.ag_dtype("bf16")
    nn.Linear(units=2) -> write out_features
    nn.Linear(2, 2, use_bias=False) -> write bias
    nn.Linear(2) -> its arguments are in_features, out_features
    nn.Linear(2, 2, kernel_initializer="zeros") -> layer.W.data
    nn.Linear(2, 2, input_shape=(2,)) -> leave it out
    nn.Dropout(p=0.1) -> write rate
    nn.Dropout(0.1, inplace=True) -> leave it out
    nn.Embedding(num_embeddings=3, embedding_dim=2) -> write vocab_size
    nn.Embedding(3, 2, padding_idx=0) -> leave it out
    nn.LayerNorm(normalized_shape=2) -> write num_features
    nn.LayerNorm(2, elementwise_affine=False) ; nn.LayerNorm(2, bias=False) ; nn.BatchNorm(2, affine=False) -> works
    nn.BatchNorm(2, track_running_stats=False) -> leave it out
    nn.MultiheadAttention(embed_dim=4, num_heads=2) -> write d_model
    nn.MultiheadAttention(4, 2, batch_first=True) -> (features, time, batch)
    nn.MultiheadAttention(4, 2, num_kv_heads=1) -> write kv_heads
    ops.attention(t, t, t, is_causal=True) -> write causal
    nn.MaxPool(kernel_size=2) -> write size
    nn.ResNet(xyzzy=1) -> there is no argument 'xyzzy'; its arguments are
    nn.Linear(2, 2, activation=abs) ; nn.Linear(2, 2, activation="rellu") -> relu
    nn.Sequential(nn.Linear) -> Linear(...)
    nn.Sequential(nn.Linear(2, 2), abs) -> ag.ops.relu
    ag.layers.Dense ; ag.models -> ag.nn
""")

MODELS = rows("""
    model.parameters() ; model.children() ; model.modules() ; model.state_dict() ; model.train() ; model.eval() -> works
    model.to("cpu") ; model.forward(t) ; model(t) ; model.buffers() ; len(model) ; model[0] ; model.training -> works
    model.cuda() ; model.cpu() -> model.to("vulkan:0")
    model.half() ; model.float() ; model.bfloat16() -> ag.ag_dtype("bf16")
    model.zero_grad() -> optimizer.zero_grad()
    model.named_parameters() -> model.parameters().items()
    model.named_modules() -> model.modules()
    model.named_buffers() -> model.buffers().items()
    model.apply(print) -> model.modules()
    model.call(t) ; ag.parallel.DataParallel(model).call(t) -> model(x)
    model.compile(optimizer="adam", loss="mse") -> ag.fit(model, (X, y))
    model.fit(A, A) -> ag.fit(model, (X, y))
    model.predict(A) -> ag.training.predict(model, X)
    model.evaluate(A, A) ; model.score(A, A) -> ag.training.evaluate(model, data)
    model.save("m") ; model.save_weights("m") -> ag.ag_save_model(model, path)
    model.load_weights("m") -> ag.load_weights(model, path)
    model.get_weights() ; model.weights ; model.trainable_variables -> model.parameters()
    model.set_weights([]) -> model.load_state_dict(state)
    model.get_layer("a") ; model.get_submodule("a") -> dict(model.modules())["layer1"]
    model.add(nn.Linear(2, 2)) ; model.append(nn.Linear(2, 2)) ; model.pop() -> ag.nn.Sequential(first, second)
    model.input_shape ; model.output_shape ; model.build((2,)) -> print(model)
    model.register_forward_hook(print) -> there are no hooks
    model.register_buffer("a", t) -> ag.ag_tensor(values) is a buffer
    model.register_parameter("a", t) -> self.name = ag.ag_param(values)
    model.add_module("a", model) -> self.name = layer
    model.device ; model.dtype -> next(iter(model.parameters().values()))
    model.share_memory() ; model.to_empty() -> none
    model.count_params() ; model.num_parameters() -> model.n_parameters
    model.requires_grad_(False) ; model.trainable -> model.freeze()
    model[0].weight ; model[0].kernel -> called W
    model[0].in_features -> works
    model.eva() -> did you mean 'eval'?
""")

TENSORS = rows("""
    t.shape ; t.ndim ; t.size ; t.dtype ; t.device ; t.grad ; t.requires_grad ; t.data ; t.T ; s.item() -> works
    t.numpy() ; t.detach() ; t.reshape(4) ; t.reshape(-1) ; t.sum() ; t.mean(0) ; t.astype("f16") -> works
    len(t) ; t.sum(axis=0) ; t @ t -> works
    t * 2 ; t[0] ; t[:, None] ; abs(t) ; t**2 ; -t ; t > 1 ; float(s) ; np.asarray(t) ; np.exp(t) -> works
    t.view(4) -> t.reshape
    t.squeeze() -> works
    t.transpose(0, 1) -> ag.ops.transpose(t, 1, 0)
    t.permute(1, 0) -> works
    t.t() ; t.mT -> t.T
    t.unsqueeze(0) -> works
    t.flatten() ; t.ravel() -> t.reshape(-1)
    t.numel() ; t.nelement() -> t.size
    t.dim() -> t.ndim
    t.cpu() ; t.cuda() ; t.to("cpu") -> ag.ag_to_device(t
    t.float() ; t.type("f32") -> t.astype("f32")
    t.half() -> t.astype("f16")
    t.bfloat16() -> t.astype("bf16")
    t.double() -> dtype="f64"
    t.long() ; t.int() -> t.numpy().astype(int)
    t.tolist() ; t.argsort() ; t.cumsum(0) -> t.numpy().{name}()
    t.argmax() ; t.any() ; t.all() -> works
    t.nonzero() -> works
    t.round() -> works
    t.clone() ; t.copy() -> copy.copy(t)
    t.add_(1) ; t.mul_(2) ; t.zero_() ; t.copy_(t) ; t.fill_(0) -> t.data = ...
    t.requires_grad_() -> ag.ag_param(t)
    s.backward() -> ag.backward(loss)
    t.is_leaf -> t.node is None
    t.grad_fn -> t.node
    t.register_hook(print) -> there are no hooks
    t.expand_as(t) -> operands broadcast
    t.expand(2, 2) -> works
    t.contiguous() -> nothing is needed
    t.min() -> works
    t.max() ; t.exp() ; t.relu() ; t.softmax(0) ; t.sigmoid() ; t.abs() ; t.log() -> works
    t.sqrt() ; t.clamp(0, 1) ; t.pow(2) ; t.matmul(t) ; t.add(t) ; t.div(t) -> works
    t.clamp(min=0.0) -> write lo
    t.gelu() -> ag.ops.{name}(t)
    t.var() -> works
    t.std() ; t.norm() -> works
    t.dot(t) ; t.mm(t) -> t@u
    t.lt(t) -> works
    t.split(1) ; t.chunk(2) -> works
    t.topk(1) -> argsort
    t.sort() -> np.{name}
    t.floor() ; t.sin() -> works
    t.masked_fill(t > 0, 0.0) ; t.where(t > 0, t) -> works
    t.gather(0, [[0, 1]]) ; t.index_select(0, [0]) -> works
    t.pin_memory() ; t.storage() ; t.stride() ; t.is_sparse -> none
    t.sahpe ; t.reshpe(4) -> did you mean
    ag.Tensor([1.0]) -> ag_tensor(values)
""")

TRAINING = rows("""
    optim.SGD(model, lr=0.1, momentum=0.9) ; optim.Adam(model) ; optim.AdamW(model, weight_decay=0.1) -> works
    optim.SGD(model, 0.1, nesterov=True, momentum=0.9) ; opt.zero_grad() ; opt.state_dict() ; opt.lr -> works
    optim.RMSprop(model) ; optim.Adagrad(model) ; optim.NAdam(model) -> ag.optim.SGD
    optim.LBFGS(model) ; optim.Lion(model) -> ag.optim.SGD
    optim.Adam(model, learning_rate=0.1) ; optim.SGD(model, learning_rate=0.1) -> write lr
    optim.Adam(model, betas=(0.9, 0.99)) -> write beta1=0.9
    optim.Adam(model, weight_decay=0.1) -> ag.optim.AdamW
    optim.Adam(model, amsgrad=True) ; optim.SGD(model, dampening=0.1) ; optim.AdamW(model, fused=True) -> leave it out
    optim.Adam(model, clipnorm=1.0) -> ag.clip_grad_norm
    optim.Adam(model, epsilon=1e-6) -> write eps
    optim.Adam() -> its arguments are params, lr
    opt.param_groups -> optimizer.lr
    opt.add_param_group({}) -> an optimizer for each group
    opt.minimize(s) -> optimizer.step(ag.backward(loss))
    opt.apply_gradients([]) -> optimizer.step(gradients)
    opt.learning_rate -> optimizer.lr
    optim.lr_scheduler.StepLR(opt, 2) -> ag.optim.StepSchedule
    optim.StepSchedule(opt, 2) ; optim.CosineSchedule(opt, T_max=3) ; optim.WarmupSchedule(opt, 2).get_lr() -> works
    optim.StepLR(opt, 2) ; optim.ExponentialLR(opt, 0.9) ; optim.MultiStepLR(opt, [2]) -> ag.optim.StepSchedule
    optim.CosineAnnealingLR(opt, 3) ; optim.CosineDecay(0.1, 3) -> ag.optim.CosineSchedule(optimizer, T_max)
    optim.OneCycleLR(opt, 1.0) ; optim.LinearLR(opt) -> ag.optim.WarmupSchedule
    optim.LambdaLR(opt, len) -> optimizer.lr
    optim.CosineSchedule(opt) -> its arguments are optimizer, T_max
    optim.CosineSchedule(opt, 3, eta_min=0.0) -> write lr_min
    optim.StepSchedule(opt, 2, last_epoch=-1) -> leave it out
    optim.WarmupSchedule(opt, warmup_steps=2) -> write steps
    optim.EMA(model) ; optim.swa_utils -> none
    ag.optimizers.Adam -> ag.optim
    ag.losses ; ag.metrics ; ag.callbacks -> ag.
    data.DataLoader(A, num_workers=2) ; data.DataLoader(A, prefetch_factor=2) -> prefetch=2
    data.DataLoader(A, pin_memory=True) ; data.DataLoader(A, persistent_workers=True) -> leave it out
    data.DataLoader(A, collate_fn=len) ; data.DataLoader(A, sampler=len) -> [i] that does it
    data.DataLoader(A, generator=3) -> write seed
    data.DataLoader(A, batch_size=2, shuffle=True, drop_last=True) ; len(loader) ; loader.batch_size -> works
    loader.dataset ; loader.sampler -> loader.n_samples
    data.Dataset ; data.ConcatDataset([A]) ; data.Subset(A, [0]) -> [i] is a data set
    data.TensorDataset(t) -> ag.data.DataLoader(x, y)
    data.random_split(A, [1, 1]) ; data.train_test_split(A) -> ag.data.split(data, 0.8)
    data.transforms.Resize(3) -> transform=function
    data.MNIST("d") ; ag.datasets ; data.CIFAR10("d") -> ag.data.load_digits()
    data.ImageFolder("d", 32, transforms=[]) -> write transform
    data.ImageFolder("d", img_size=32) -> write size
    data.ImageFolder("d", 32, target_transform=len) -> order of the folders
    batch.inputs ; batch.features -> batch.x
    batch.labels ; batch.target -> batch.y
    ag.fit(model, (A, A), validation_data=(A, A)) ; ag.fit(model, (A, A), eval_set=(A, A)) -> write valid=(X, y)
    ag.fit(model, (A, A), validation_split=0.2) -> ag.data.split(data, 0.8)
    ag.fit(model, X=A, y=A) -> (X, y)
    ag.fit(model, (A, A), n_epochs=2) ; ag.fit(model, (A, A), max_epochs=2) -> write epochs
    ag.fit(model, (A, A), learning_rate=0.1) -> write lr
    ag.fit(model, (A, A), loss_fn=len) ; ag.fit(model, (A, A), criterion=len) -> write loss
    ag.fit(model, (A, A), device="cpu") -> write devices
    ag.fit(model, (A, A), steps_per_epoch=3) ; ag.fit(model, (A, A), initial_epoch=3) -> all samples
    ag.fit(model) -> its arguments are model, train
    ag.fit({"forward": len, "parameters": dict}, (A, A)) -> types.SimpleNamespace(**model)
    ag.dp_train(dict, [A], ops.mse_loss, devices=["cpu"]) -> types.SimpleNamespace(forward=..., parameters=...)
    ag.training.EarlyStopping(patience=3, monitor="val_loss", mode="min", min_delta=0.1) -> works
    ag.training.EarlyStopping(restore_best_weights=True) -> ag.training.BestWeights()
    ag.training.ModelCheckpoint("m") ; ag.training.ReduceLROnPlateau() -> works
    ag.ModelCheckpoint("m") -> ag.training.ModelCheckpoint
    optim.ReduceLROnPlateau(opt) -> ag.training.ReduceLROnPlateau
    ag.training.CSVLogger("m") -> ag.training.CSVLog(path)
    ag.training.CSVLog(filename="m") -> write path
    ag.training.WandbLogger() ; ag.training.LambdaCallback() -> ag.training.Callback
    ag.training.LearningRateScheduler(len) -> optimizer.lr
    ag.EarlyStopping(3) -> ag.training.EarlyStopping
    ag.to_categorical([0]) -> ag.ops.one_hot(ids, n)
    ag.dp_train(model, [], epochs=3) -> write n_iter
    ag.dp_train(model, [], model=model) -> write make_model
    ag.DistributedDataParallel(model) -> ag.parallel.DataParallel(model)
    ag.all_reduce(t) -> ag.syncgrads(
    ag.train(model) -> ag.fit(model, (X, y))
    history.history["loss"] -> history["loss"]
    history.epoch -> did you mean 'epochs'?
    history["loss"] ; history.epochs ; dict(history) -> works
    ag.io.export_onnx(model, "m", t, opset_version=13) -> leave it out
    ag.ag_load_model("m", map_location="cpu") -> ag.ag_device(
    ag.io.torch_load("m") -> none
""")

ESTIMATORS = rows("""
    ag.AgClassifier(activation="relu", batch_size=8, random_state=0, verbose=False, validation_fraction=0.2) -> works
    ag.AgClassifier(hidden_layer_sizes=(8,)) ; ag.AgRegressor(hidden_layer_sizes=(8,)) -> write hidden
    ag.AgClassifier(max_iter=8) -> write epochs
    ag.AgClassifier(early_stopping=True) -> write patience=5
    ag.AgClassifier(n_iter_no_change=3) -> write patience
    ag.AgClassifier(learning_rate=0.1) -> write lr
    ag.AgClassifier(solver="sgd") ; ag.AgClassifier(momentum=0.9) ; ag.AgClassifier(beta_1=0.9) -> write optimizer
    ag.AgClassifier(warm_start=True) -> ag.fit(clf.model_
    ag.AgClassifier(device="cpu") -> write devices
    ag.AgClassifier(tol=1e-3) ; ag.AgClassifier(power_t=0.5) ; ag.AgClassifier(n_jobs=2) -> leave it out
    ag.AgClassifier(xyzzy=2) -> AgClassifier: there is no argument 'xyzzy'
    ag.AgClassifier(alpha=0.1) -> write weight_decay
    clf.get_params() ; clf.score ; clf.predict_proba ; clf.set_params(epochs=2) -> works
    clf.coefs_ ; clf.intercepts_ -> clf.model_.state_dict()
    clf.loss_curve_ ; clf.loss_ ; clf.best_loss_ ; clf.n_iter_ -> clf.history_
    clf.partial_fit(A, [0, 1]) -> ag.fit(clf.model_
    clf.predict_log_proba(A) ; clf.decision_function(A) -> clf.predict_proba(X)
    clf.fitt(A) -> did you mean 'fit'?
    ag.MLPClassifier() ; ag.MLPRegressor() -> AgClassifier(hidden=(64,))
    ag.StandardScaler() ; ag.GridSearchCV(clf, {}) -> none
""")

GGMLR = rows("""
    ag.ag_tensor([1.0], dtype="f32") ; ag.ag_param(A) ; ag.ag_linear(2, 2) ; ag.optimizer_adam(model) -> works
    ag.ag_dataloader(A, A, batch_size=2) ; ag.ag_default_device() ; ag.ggml_vulkan_device_count() -> works
    ag.ggml_model_sequential() -> ag.nn.Sequential(first, second)
    ag.ggml_input(4) -> leave it out
    ag.ggml_layer_dense(8) -> ag.nn.Linear(
    ag.ggml_layer_conv_2d(8, 3) -> ag.nn.Conv2d(
    ag.ggml_layer_max_pooling_2d(2) -> ag.nn.MaxPool(size)
    ag.ggml_layer_global_average_pooling_2d() -> ag.nn.GlobalPool()
    ag.ggml_layer_flatten() -> ag.nn.Flatten()
    ag.ggml_layer_dropout(0.1) -> ag.nn.Dropout(rate)
    ag.ggml_layer_embedding(4, 2) -> ag.nn.Embedding(vocab_size, dim)
    ag.ggml_layer_batch_norm() -> ag.nn.BatchNorm
    ag.ggml_layer_lstm(8) -> ag.nn.Layer
    ag.ggml_compile(model) -> nothing is needed
    ag.ggml_fit(model, A, A) -> ag.fit(model, (X, y))
    ag.ggml_predict(model, A) -> ag.training.predict(model, X)
    ag.ggml_evaluate(model, A, A) -> ag.training.evaluate(model
    ag.ggml_save_model(model, "m") -> ag.ag_save_model(model, path)
    ag.ggml_load_model("m") -> ag.ag_load_model(path)
    ag.ggml_callback_early_stopping() -> ag.training.EarlyStopping
    ag.ggml_schedule_cosine_decay() -> ag.optim.CosineSchedule
    ag.ggml_init(1) ; ag.ggml_new_tensor_2d(0) ; ag.ggml_mul_mat(t, t) ; ag.ggml_graph_compute(0) -> not ported
    ag.ggml_backend_init() ; ag.ggml_build_forward_expand(0) -> not ported
    ag.gguf_load("m") ; ag.gguf_tensor_names("m") -> ag.load_weights(model, path)
    ag.ag_sum(t, dim=2) -> Dims count from 0
    ag.ag_batch_nrom(2) -> did you mean ag.ag_batch_norm
    ag.ag_lstm(2) -> ag.nn.Layer
    ag.ag_conv1d(t) -> ag.nn.Conv1d
""")
TABLES: Mapping[str, Mapping[str, str]] = {
    "functions": FUNCTIONS, "layers": LAYERS, "models": MODELS, "tensors": TENSORS, "training": TRAINING,
    "estimators": ESTIMATORS, "ggmlR": GGMLR}


@cache
def world() -> Mapping[str, Any]:
    """Return the names that the rows use."""
    A = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    model = ag.nn.Sequential(ag.nn.Linear(2, 3, activation="relu"), ag.nn.Linear(3, 2))
    return {"ag": ag, "nn": ag.nn, "ops": ag.ops, "optim": ag.optim, "data": ag.data, "np": np, "A": A, "model": model,
            "t": ag.ag_tensor(A), "s": ag.ag_tensor(1.5), "opt": ag.optim.Adam(model), "loader": ag.data.DataLoader(A),
            "batch": ag.Batch(ag.ag_tensor(A), A), "history": ag.fit(model, (A, A), epochs=1, verbose=False)}


def answer(line: str) -> str:
    """Return what becomes of a line."""
    names = dict(world())
    if "clf" in line:
        names["clf"] = ag.AgClassifier(epochs=1)
    try:
        eval(line, names)
    except (AttributeError, TypeError, ValueError, AgError) as error:
        return str(error)
    return WORKS


def fits(line: str, expected: str) -> bool:
    said = answer(line)
    if expected == NONE:
        return "there is no" in said and said.endswith("lists what there is.")
    called = re.match(r"[\w.]*?(\w+)(?:[(\[]|$)", line)
    return expected.replace("{name}", called[1] if called else "") in said and len(said) < 400 and "\n" not in said


@pytest.mark.parametrize("table", TABLES)
def test_a_name_works_or_is_answered(table: str) -> None:
    if table == "estimators":
        pytest.importorskip("sklearn")
    wrong = [f"{line}: {expected!r} is not in {answer(line)!r}" for line, expected in TABLES[table].items()
             if not fits(line, expected)]
    assert not wrong, "\n".join(wrong)


def test_a_function_of_numpy_on_the_tape_is_not_said_to_be_in_ops() -> None:
    W = ag.ag_param([[1.0]])
    with ag.with_grad_tape(), pytest.raises(TypeError, match=r"no op does this, .*; compose it of ag\.ops where"):
        np.cbrt(W)


def test_gradients_of_gradients_are_named_where_they_are_the_cause() -> None:
    W = ag.ag_param([[3.0]])
    with ag.with_grad_tape():
        gradient = ag.backward(ag.ops.sum(W * W * W))[W]
        penalty = ag.ops.sum(gradient * gradient)
    with pytest.raises(ag.TapeError, match=r"Gradients of gradients are not supported\."):
        ag.backward(penalty)


def test_there_are_300_names() -> None:
    assert len({line for table in TABLES.values() for line, expected in table.items() if expected != WORKS}) >= 300


SLIPS = rows("""
    ag.Linera -> ag.nn.Linear
    nn.Sequentail -> ag.nn.Sequential
    nn.Embeding -> ag.nn.Embedding
    nn.LayerNrom -> ag.nn.LayerNorm
    nn.MultiHeadAttention -> ag.nn.MultiheadAttention
    ops.sofmax -> ag.ops.softmax
    ops.reshpe -> ag.ops.reshape
    ops.transpse -> ag.ops.transpose
    ops.matmull -> ag.ops.matmul
    optim.Adamw -> ag.optim.AdamW
    optim.CosineSchedul -> ag.optim.CosineSchedule
    data.Dataloader -> ag.data.DataLoader
    data.ImageFoldr -> ag.data.ImageFolder
    ag.backwards -> ag.backward
    ag.ag_tenser -> ag.ag_tensor
    ag.dp_trian -> ag.dp_train
    ag.exprt_onnx -> ag.export_onnx
    ag.training.EarlyStoping -> ag.training.EarlyStopping
    ag.io.load_modle -> ag.io.load_model
    t.shpae -> 'shape'
    t.detatch -> 'detach'
    opt.zero_grd -> 'zero_grad'
    model.paramters -> 'parameters'
    ag.fit(model, (A, A), epcohs=3) -> 'epochs'
""")
OTHERS = rows("""
    stop_grad ; transform ; max_pool9d ; avg_pool7d -> none
    polar ; bias ; scan ; slide_window -> none
    summary2 ; device2 ; data_loader2 ; checkpoint2 ; gradients2 ; shut ; plot ; print -> none
    test ; table ; adamax2 ; sampler ; relu_grad ; logits ; cross ; meaning ; subtract2 -> none
    multiply ; absolute_value -> none
""")


@pytest.mark.parametrize("line", SLIPS)
def test_a_slip_is_answered_with_the_nearest_name(line: str) -> None:
    assert f"did you mean {SLIPS[line]}" in answer(line)


def test_another_word_is_no_slip() -> None:
    for word in OTHERS:
        assert answer(f"ag.{word}") == f"ag: there is no {word!r}; dir(ag) lists what there is."


def public() -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield functions and classes with a constructor by their full names, each once."""
    seen = set[int]()
    for full in [f"{space}.{name}" for space in NAMESPACES for name in dir(eval(space, {"ag": ag}))]:
        thing = eval(full, {"ag": ag})
        made = type(thing) in (type, ABCMeta) and isfunction(thing.__init__)
        if (made or isfunction(thing)) and id(thing) not in seen and not (made and issubclass(thing, BaseException)):
            seen.add(id(thing))
            yield full, thing


# What every step makes or enters has no wrapper.
SILENT = ("DPResult", "DPStep", "Gradients", "detect_anomaly", "no_grad", "with_grad_tape")


def test_every_function_answers_an_unknown_argument() -> None:
    found = dict(public())
    assert len(found) > 120
    assert set(SILENT) <= {thing.__name__ for thing in found.values()}
    for thing in found.values():
        if not getattr(thing, "_is_protocol", False) and thing.__name__ not in SILENT:
            with pytest.raises(TypeError, match=r"^\w+: there is no argument 'xyzzy'; its arguments are .*\.$"):
                thing(xyzzy=1)


def test_no_answer_leads_back_to_the_function_itself() -> None:
    arguments = {name for table in (elsewhere.ANY_ARGUMENTS, *elsewhere.ARGUMENTS.values()) for name in table}
    for thing in dict(public()).values():
        has, name = signature(thing), getattr(thing, "_function", thing.__name__)
        for argument in arguments - {*has.parameters}:
            for table in elsewhere.ARGUMENTS.values():
                assert f".{name}(" not in str(wrong_arguments(name, has, (), {argument: 1}, table))


def test_functions_that_answer_are_found_by_pickle() -> None:
    for name, thing in public():
        if isfunction(thing):
            assert pickle.loads(pickle.dumps(thing)) is thing, name


def test_an_error_inside_of_a_function_stays_as_it_is() -> None:
    def function(call: Callable[..., object], x: int = 0) -> object:
        return call(1, 2, 3)

    with pytest.raises(TypeError, match=r"<lambda>\(\) takes 0 positional arguments but 3 were given"):
        answering(function, {})(lambda: 0)
    with pytest.raises(TypeError, match=r"function: missing a required argument: 'call'; its arguments are call, x\."):
        answering(function, {})()
    with pytest.raises(TypeError, match=r"function: multiple values for argument 'x'"):
        answering(function, {})(len, 1, x=2)
    assert answering(function, {})(lambda *args: args) == (1, 2, 3)


@cache
def objects() -> Mapping[str, list[object]]:
    """Return what the answers speak of."""
    model, loader = world()["model"], world()["loader"]
    models = [model, model[0], ag.DataParallel(model)]
    return {"t": [world()["t"]], "model": models, "layer": models, "optimizer": [world()["opt"]], "loader": [loader],
            "history": [world()["history"]]}


ANSWERS = {name: table for name, table in vars(elsewhere).items()
           if name.isupper() and name not in ("SYNONYMS", "ARGUMENTS")} | elsewhere.ARGUMENTS


@pytest.mark.parametrize("table", ANSWERS)
def test_what_an_answer_names_is_there(table: str) -> None:
    for text in ANSWERS[table].values():
        for name in re.findall(r"\b(?:ag|np)\.[\w.]*\w", text):
            assert eval(name, {"ag": ag, "np": np}) is not None, text
        for name, attribute in re.findall(r"\b(t|model|layer|optimizer|loader|history)\.(\w+)", text):
            assert any(hasattr(x, attribute) for x in objects()[name]), text


def test_a_synonym_is_an_argument_where_the_name_is_none() -> None:
    known = [{*signature(thing).parameters} for _, thing in public()]
    for name, arguments in elsewhere.SYNONYMS.items():
        for argument in arguments:
            assert any(argument in has and name not in has for has in known), name

