"""Names of other libraries: each with the end of the message "there is no NAME; ...".

tests/test_habits.py checks that every ``ag.`` name in a text exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from re import findall


def _table(text: str) -> Mapping[str, str]:
    """Read lines such as ``cuda cpu: write ...``, where ``{name}`` is each of the names; an indented line goes on."""
    rows = [line.split(": ", 1) for line in text.strip().replace("\n    ", " ").split("\n")]
    return {name: hint.replace("{name}", name) for names, hint in rows for name in names.split()}


# What other libraries call something, and what to do here.
ELSEWHERE = _table("""
Module: derive models from ag.nn.Layer
functional: functions are in ag.ops
ModuleList: keep layers in a plain list, which is looked into
ModuleDict: keep layers in a plain dict, which is looked into
Parameter parameter: write ag.ag_param(values)
ReLU GELU SiLU Sigmoid Tanh Softmax LogSoftmax LeakyReLU: activations are arguments of layers, as in ag.nn.Linear(4, 8,
    activation="relu"), and functions in ag.ops
CrossEntropyLoss: write ag.ops.softmax_cross_entropy_loss(logits, labels), which is a function
cross_entropy NLLLoss nll_loss: write ag.ops.softmax_cross_entropy_loss(logits, labels)
MSELoss: write ag.ops.mse_loss(pred, target), which is a function
Dense: write ag.nn.Linear(in_features, out_features)
one_hot: class ids are targets as they are; or make the array, np.eye(n)[ids]
init: assign values to a parameter, layer.W.data = ...; layers begin with those of Glorot
random_split: shuffle the numbers of the samples with numpy, and slice
set_grad_enabled: write `with ag.no_grad():`, or ag.with_grad_tape()
RMSprop Adagrad Adadelta NAdam RAdam Adamax LBFGS Lion Rprop: there are ag.optim.SGD, ag.optim.Adam and ag.optim.AdamW
MaxPool2d: write ag.nn.MaxPool(size)
AvgPool2d: write ag.nn.AvgPool(size)
AdaptiveAvgPool2d: write ag.nn.GlobalPool()
Identity: leave the layer out; a residual block without shortcut passes its input on
zeros ones randn rand arange full eye linspace zeros_like ones_like from_numpy as_tensor asarray array empty: make the
    array with numpy and pass it to ag.ag_tensor
min stack squeeze swapaxes expand_dims square dot: write np.{name}, which takes tensors and records what it does
where argmax argmin argsort sort cumsum std var einsum prod sin cos sign floor ceil outer diag triu tril flip roll
    repeat tile any all: write np.{name}, which takes tensors and gives arrays, without a gradient
topk top_k: write np.argsort(t), which gives an array
chunk split: write slices, such as t[:2] and t[2:]
multinomial: draw from softmax with numpy: (t.numpy() + rng.gumbel(size=t.shape)).argmax(axis=0)
Conv1d Conv3d ConvTranspose2d RNN LSTM GRU GroupNorm InstanceNorm2d Transformer TransformerEncoderLayer: derive a layer
    of your own from ag.nn.Layer, and write its forward with ag.ops
L1Loss l1_loss BCELoss BCEWithLogitsLoss binary_cross_entropy HuberLoss binary_cross_entropy_with_logits SmoothL1Loss
    huber_loss KLDivLoss: any function of tensors that ends in a mean is a loss, such as ag.ops.mean(ag.ops.abs(pred -
    target))
tensor: write ag.ag_tensor(values)
is_tensor: write ag.is_ag_tensor(x)
cat: write ag.ops.concat(tensors, dim=0)
manual_seed: write ag.ag_seed(0)
float32 float16 bfloat16 float64 int32 int64 long float double half: element types are strings, such as dtype="f32" or
    dtype="bf16"
device: devices are strings; write ag.ag_device("vulkan:0") for the default one
cuda: devices are strings, such as "vulkan:0"; ag.ag_vulkan_devices() lists them
save: write ag.ag_save_model(model, path), or ag.ag_save_checkpoint(path, model, optimizer)
load: write ag.ag_load_model(path), or ag.ag_load_checkpoint(path, model, optimizer)
compile jit: write ag.ag_capture(step)
grad gradient: write ag.backward(loss), which returns the gradients
enable_grad: write ag.with_grad_tape()
inference_mode: write ag.no_grad()
lr_scheduler: schedules are ag.optim.StepSchedule, ag.optim.CosineSchedule and ag.optim.WarmupSchedule
StepLR: write ag.optim.StepSchedule(optimizer, step_size)
CosineAnnealingLR: write ag.optim.CosineSchedule(optimizer, T_max)
clip_grad_norm_: write ag.clip_grad_norm(params, grads, max_norm)
DistributedDataParallel: write ag.parallel.DataParallel(model), or ag.dp_train over ranks
DeviceFailure: write ag.DeviceError; a lost process is an ag.RankLostError
average_model_weights average_weights: write ag.syncgrads([m.state_dict() for m in models]), and load_state_dict with
    its t.numpy()
all_reduce allreduce: write ag.syncgrads(sets, world=world), or comm.all_reduce(array) of an ag.DistributedWorld
prepare_training: write ag.start(loss, data, model_fn), which prepares and trains
train: write ag.fit(model, (X, y)) or ag.start(loss, data, model_fn) to train, ag.nn.train(model) for its mode
train_solutions: write ag.data.imagenet.train_solutions(path)
minibatch: write ag.data.imagenet.minibatch(images, nsamples)
topkaccuracy: write ag.data.imagenet.topk_accuracy(out, ids, k)
Dataset: any object with len() and [i] is a data set; give it to ag.data.DataLoader
TensorDataset: give the arrays to ag.data.DataLoader(x, y)
""")

TENSOR = _table("""
cuda cpu to: write ag.ag_to_device(t, "vulkan:0"), or "cpu"
float: write t.astype("f32")
half: write t.astype("f16")
bfloat16: write t.astype("bf16")
double: write ag.ag_tensor(t.numpy(), dtype="f64"), which has no gradient
int long: write t.numpy().astype(int); class ids are arrays, or ag.ag_tensor(ids, dtype="i32")
zero_ fill_ copy_ add_ sub_ mul_ div_ clamp_ fill put: assign a whole array, t.data = ..., or make another tensor
backward: write ag.backward(loss)
view squeeze: write t.reshape(...)
permute: write ag.ops.transpose(t, 1, 0)
transpose swapaxes: write ag.ops.transpose(t, 1, 0), or t.T
t mT T_: write t.T
tolist argmax argmin any all round argsort cumsum prod nonzero: write t.numpy().{name}()
numel: write t.size
dim: write t.ndim
nbytes: write t.numpy().nbytes
flatten ravel: write t.reshape(-1)
clone copy: write copy.copy(t), or t[...] on the tape
requires_grad_: write ag.ag_param(t), which copies
is_leaf: write t.requires_grad and t.node is None
grad_fn: write t.node, which is None for what was not computed on the tape
unsqueeze: write t[:, None] or t.reshape(...)
expand: nothing is needed: operands broadcast
contiguous: nothing is needed: every tensor is contiguous
min: write -ag.ops.max(-t), or t.numpy().min()
var: write ((t - t.mean()) ** 2).mean()
std: write ag.ops.sqrt(((t - t.mean()) ** 2).mean())
norm: write ag.ops.sqrt((t * t).sum())
dot mm bmm: write t @ u
split chunk: write slices, such as t[:, :2], or ag.scatter(t, devices)
topk top_k: write t.numpy().argsort(), whose last places are the largest
sort: write np.sort(t), which gives an array
""")

LAYER = _table("""
cuda cpu: write model.to("vulkan:0"), or "cpu"
half float bfloat16 double: make the model under `with ag.ag_dtype("bf16"):`, or the type that you want
zero_grad: write optimizer.zero_grad()
named_parameters: write model.parameters().items(), a dict by name
named_modules: write model.modules()
named_children: write model.children().items()
requires_grad_: leave the parameters out that you give to the optimizer
compile: write ag.ag_capture(step) of the training step
fit: write ag.fit(model, (X, y)), or a loop
predict: write model(x), or ag.training.predict(model, X)
evaluate: write ag.training.evaluate(model, data)
weight: a weight matrix is called W, as in model.W
apply: write a loop over model.modules()
register_buffer: assign the tensor: self.name = ag.ag_tensor(values) is a buffer
register_parameter: assign the parameter: self.name = ag.ag_param(values)
add_module: assign the layer: self.name = layer
model_replicas: a DataParallel makes replicas for each pass, of its one set of weights, model.module
all_reduce_gradients sync_gradients: nothing is needed: backward gives the parameters the gradients of all replicas
""")

BATCH = _table("""
data input inputs features images: write batch.x
target targets label labels: write batch.y
""")

OPTIMIZER = _table("""
param_groups: settings are attributes, such as optimizer.lr, and parameters optimizer.params
minimize: write optimizer.step(ag.backward(loss))
apply_gradients: write optimizer.step(gradients)
learning_rate: write optimizer.lr
""")

OPTIMIZER_ARGUMENTS = _table("""
weight_decay: write ag.optim.AdamW(params, weight_decay=0.01), which shrinks the weights beside the gradient
betas: write beta1=0.9, beta2=0.999 to ag.optim.Adam
learning_rate: write lr
dampening: leave it out: there is none
momentum nesterov: write ag.optim.SGD(params, lr=0.01, momentum=0.9)
""")

LAYER_ARGUMENTS = _table("""
device: make the layer under `with ag.ag_device("vulkan:0"):`, or write layer.to("vulkan:0")
dtype: make the layer under `with ag.ag_dtype("bf16"):`
padding_mode: images are padded with zeros
batch_first: axes are (features, time, batch)
affine elementwise_affine track_running_stats: leave it out: the layer does
padding_idx max_norm: leave it out: there is none
""")

LOADER_ARGUMENTS = _table("""
num_workers: write prefetch=2, batches made ahead by a thread
pin_memory: leave it out: nothing is needed
collate_fn sampler batch_sampler: give an object with len() and [i] that does it
transform: let the [i] of your data set do it
dataset: give it first, DataLoader(dataset)
""")

# What others call an argument, and what it may be here.
SYNONYMS: Mapping[str, tuple[str, ...]] = {name: tuple(here.split("|")) for name, here in findall(r"(\w+)=(\S+)", """
kernel_size=kernel|size pool_size=size in_channels=in_ch out_channels=out_ch filters=out_ch strides=stride p=rate
prob=rate drop_rate=rate num_embeddings=vocab_size input_dim=vocab_size|in_features embedding_dim=dim
output_dim=dim|out_features normalized_shape=num_features embed_dim=d_model hidden_size=d_model num_heads=n_heads
heads=n_heads attn_dropout=dropout in_dim=in_features out_dim=out_features units=out_features use_bias=bias epsilon=eps
classes=num_classes n_classes=num_classes
""")}

TRAINING_ARGUMENTS = _table("""
epochs n_epochs num_epochs max_epochs: write n_iter, a number of steps, or ag.fit(model, (X, y), epochs=10), which
    passes over the data
steps n_steps num_steps max_steps iterations: write n_iter, a number of steps
batch_size: write batch, the samples of a step, or give data=ag.data.DataLoader(x, y, batch_size=32)
model: write make_model, a function that returns a new model
learning_rate: write lr
loss criterion: write loss_fn
callbacks: write callback, one function
valid validation_data metrics: write ag.fit(model, train, valid, metrics=...)
""")

FIT_ARGUMENTS = _table("""
validation_data val_data eval_set: write valid=(X, y)
validation_split validation_fraction: split the arrays, fit(model, (X[:800], y[:800]), valid=(X[800:], y[800:]))
x X y data: write fit(model, (X, y))
n_epochs num_epochs max_epochs n_iter: write epochs
learning_rate: write lr
loss_fn criterion: write loss
callback: write callbacks
batch: write batch_size
random_state: write seed
device: write devices, a list of names such as ["vulkan:0"]
sample_weight: put the weights into the targets, and let loss take them from there
""")
