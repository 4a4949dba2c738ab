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


# What other libraries call something, and what to do here.  ``ggml_*`` is every other name that begins so.
ELSEWHERE = _table("""
Module: derive models from ag.nn.Layer
functional: functions are in ag.ops
ModuleList ParameterList: keep them in a plain list, which is looked into
ModuleDict ParameterDict: keep them in a plain dict, which is looked into
Parameter parameter: write ag.ag_param(values)
ReLU GELU SiLU Sigmoid Tanh Softmax LogSoftmax LeakyReLU: write the function, as in ag.nn.Sequential(ag.nn.Linear(4, 8),
    ag.ops.relu), or the argument of a layer, activation="relu"
ReLU6 relu6 Hardtanh hardtanh clip: write ag.ops.clamp(t, 0.0, 6.0)
Softplus softplus LogSigmoid logsigmoid Mish mish: compose it: softplus is ag.ops.relu(t) + ag.ops.log(1.0 +
    ag.ops.exp(-ag.ops.abs(t))), log-sigmoid is -softplus(-t), mish is t * ag.ops.tanh(softplus(t))
SwiGLU GLU GEGLU glu: compose it, as in down(ag.ops.silu(gate(x)) * up(x)), with layers gate, up and down
ELU SELU CELU PReLU elu selu celu prelu Hardswish hardswish Softsign softsign Threshold: the activations are ag.ops.relu,
    leaky_relu, gelu, silu, sigmoid, tanh and softmax; compose others of ag.ops
CrossEntropyLoss cross_entropy NLLLoss nll_loss CategoricalCrossentropy SparseCategoricalCrossentropy: write
    ag.ops.softmax_cross_entropy_loss(logits, labels), which is a function
MSELoss MeanSquaredError: write ag.ops.mse_loss(pred, target), which is a function
BCELoss BCEWithLogitsLoss bce_loss binary_cross_entropy binary_cross_entropy_with_logits BinaryCrossentropy: write
    ag.ops.bce_with_logits_loss(logits, target), which is a function
Dense: write ag.nn.Linear(in_features, out_features)
Conv2D: write ag.nn.Conv2d(in_ch, out_ch, kernel)
BatchNorm1d BatchNorm2d BatchNormalization: write ag.nn.BatchNorm(num_features)
LayerNormalization: write ag.nn.LayerNorm(num_features)
MaxPool2d MaxPooling2D: write ag.nn.MaxPool(size)
AvgPool2d AveragePooling2D: write ag.nn.AvgPool(size)
AdaptiveAvgPool2d GlobalAveragePooling2D adaptive_avg_pool2d: write ag.nn.GlobalPool(), the mean of every image
Identity: leave the layer out; a residual block without shortcut passes its input on
Dropout1d Dropout2d dropout: write ag.nn.Dropout(rate), a layer
Input InputLayer: leave it out: layers are made with the sizes of their inputs
Add add_layer: write ag.nn.Residual(body), or a + b in the forward of a layer of your own
Concatenate: write ag.ops.concat(tensors, dim=0) in the forward of a layer of your own
Model: write ag.nn.Sequential(...), or derive a layer of your own from ag.nn.Layer
MLPClassifier MLPRegressor: write ag.AgClassifier(hidden=(64,)) or ag.AgRegressor(hidden=(64,)), for which scikit-learn
    must be installed
layers models: layers are in ag.nn
losses: losses are functions, such as ag.ops.mse_loss and ag.ops.softmax_cross_entropy_loss
optimizers: optimizers are in ag.optim
callbacks metrics: callbacks and metrics are in ag.training
to_categorical one_hot: class ids are targets as they are; or make the array, np.eye(n)[ids]
init: assign values to a parameter, layer.W.data = ...; layers begin with those of Glorot
random_split train_test_split: write ag.data.split(data, 0.8)
MNIST CIFAR10 datasets: there are ag.data.load_digits() and ag.data.load_iris(); for others read arrays or a folder of
    images yourself
transforms: give a function of an image (height, width, 3), ag.data.ImageFolder(path, size, transform=function)
set_grad_enabled: write `with ag.no_grad():`, or ag.with_grad_tape()
RMSprop RMSProp Adagrad Adadelta NAdam Nadam RAdam Adamax LBFGS Lion Rprop ASGD Adafactor LAMB: there are ag.optim.SGD,
    ag.optim.Adam and ag.optim.AdamW
zeros ones rand randn arange full eye linspace zeros_like ones_like full_like from_numpy as_tensor asarray array empty
    normal randint randperm meshgrid: make the array with numpy and pass it to ag.ag_tensor
min stack squeeze unsqueeze swapaxes expand_dims square dot: write np.{name}, which takes tensors and records what it
    does; np.expand_dims is unsqueeze
where masked_fill: write mask * a + (1 - mask) * b with an array of 0 and 1; np.where gives arrays, without a gradient
argmax argmin argsort cumsum cumprod einsum prod sign floor ceil outer diag triu tril flip roll repeat tile any all sin
    cos tan sinh cosh arctan arcsin round isnan isfinite isinf allclose log1p log2 log10 expm1 median nonzero unique:
    write np.{name}, which takes tensors and gives arrays, without a gradient
sort: write np.sort(t), which gives an array, without a gradient
var std norm: write the formula, as in ag.ops.sqrt(ag.ops.mean((t - ag.ops.mean(t)) ** 2))
maximum minimum: write np.{name}(t, 0.5), which takes a tensor and a number, and records what it does
rsqrt: write 1.0 / ag.ops.sqrt(t)
logsumexp: write m + ag.ops.log(ag.ops.sum(ag.ops.exp(t - m))) with m = ag.ops.max(t)
normalize: write t / ag.ops.sqrt(ag.ops.sum(t * t, dim=0, keepdim=True))
mm bmm mv: write a @ b
permute: write ag.ops.transpose(t, 1, 0)
linear: write W @ x + b, or the layer ag.nn.Linear
embedding: write ag.ops.embedding_lookup(weight, ids), or the layer ag.nn.Embedding
scaled_dot_product_attention: write ag.ops.attention(q, k, v, causal=True)
gather index_select take scatter scatter_add: write slices, or ag.ops.embedding_lookup(t, ids), which takes columns
topk top_k: write np.argsort(t), which gives an array
chunk split: write slices, such as t[:2] and t[2:]
multinomial sample: draw from softmax with numpy: (t.numpy() + rng.gumbel(size=t.shape)).argmax(axis=0)
Conv1d Conv3d ConvTranspose2d RNN LSTM GRU LSTMCell GroupNorm InstanceNorm2d Transformer TransformerEncoder
    TransformerEncoderLayer Upsample PixelShuffle RotaryEmbedding ZeroPad2d Bidirectional UpSampling2D: derive a layer of
    your own from ag.nn.Layer, and write its forward with ag.ops
L1Loss l1_loss HuberLoss huber_loss SmoothL1Loss smooth_l1_loss KLDivLoss kl_div CTCLoss TripletMarginLoss
    CosineEmbeddingLoss MeanAbsoluteError: any function of tensors that ends in a mean is a loss, such as
    ag.ops.mean(ag.ops.abs(pred - target))
tensor: write ag.ag_tensor(values)
is_tensor: write ag.is_ag_tensor(x)
cat: write ag.ops.concat(tensors, dim=0)
manual_seed set_random_seed set_seed reset: write ag.ag_seed(0)
float32 float16 bfloat16 float64 int32 int64 long float double half: element types are strings, such as dtype="f32" or
    dtype="bf16"
set_default_dtype autocast amp: write ag.ag_dtype("bf16") before the model is made
GradScaler: nothing is needed: losses of f16 models are scaled
device set_default_device: devices are strings; write ag.ag_device("vulkan:0") for the default one
cuda: devices are strings, such as "vulkan:0"; ag.ag_vulkan_devices() lists them
save: write ag.ag_save_model(model, path), or ag.ag_save_checkpoint(path, model, optimizer)
load: write ag.ag_load_model(path), or ag.ag_load_checkpoint(path, model, optimizer)
compile jit: write ag.ag_capture(step)
grad gradient value_and_grad GradientTape autograd: write ag.backward(loss), which returns the gradients of a loss that
    was computed in ag.with_grad_tape()
enable_grad: write ag.with_grad_tape()
inference_mode: write ag.no_grad()
stop_gradient: write t.detach()
vmap: nothing is needed: the batch is the last axis
checkpoint: write ag.ag_checkpoint(function, x) to compute a part again, ag.ag_save_checkpoint(path, model) for a file
Function custom_op custom_gradient custom_vjp custom_jvp: a function of ag.ops has its gradient; docs/adding_an_op.md
    shows how to add an op
onnx: write ag.export_onnx(model, path, example)
lr_scheduler schedules: schedules are ag.optim.StepSchedule, ag.optim.CosineSchedule and ag.optim.WarmupSchedule
StepLR MultiStepLR ExponentialLR: write ag.optim.StepSchedule(optimizer, step_size)
CosineAnnealingLR CosineAnnealingWarmRestarts CosineDecay: write ag.optim.CosineSchedule(optimizer, T_max)
LinearLR OneCycleLR: write ag.optim.WarmupSchedule(optimizer, steps, after=...)
LambdaLR PolynomialLR LearningRateScheduler: set optimizer.lr yourself, or derive from ag.optim.Schedule
CSVLogger: write ag.training.CSVLog(path)
WandbLogger LambdaCallback TerminateOnNaN: derive a callback of your own from ag.training.Callback
clip_grad_norm_ clip_grad_value_ clip_by_global_norm: write ag.clip_grad_norm(params, grads, max_norm)
DistributedDataParallel: write ag.parallel.DataParallel(model), or ag.dp_train over ranks
DeviceFailure: write ag.DeviceError; a lost process is an ag.RankLostError
average_model_weights average_weights: write ag.syncgrads([m.state_dict() for m in models]), and load_state_dict with
    its t.numpy()
all_reduce allreduce: write ag.syncgrads(sets, world=world), or comm.all_reduce(array) of an ag.DistributedWorld
prepare_training: write ag.start(loss, data, model_fn), which prepares and trains
train ggml_fit: write ag.fit(model, (X, y)) or ag.start(loss, data, model_fn) to train, ag.nn.train(model) for its mode
train_solutions: write ag.data.imagenet.train_solutions(path)
minibatch: write ag.data.imagenet.minibatch(images, nsamples)
topkaccuracy: write ag.data.imagenet.topk_accuracy(out, ids, k)
Dataset IterableDataset: any object with len() and [i] is a data set; give it to ag.data.DataLoader
TensorDataset: give the arrays to ag.data.DataLoader(x, y)
Subset ConcatDataset: slice or join the arrays, or write an object with len() and [i]
ggml_model_sequential ggml_model ggml_input: write ag.nn.Sequential(...), of layers that know the sizes of their inputs
ggml_layer_dense: write ag.nn.Linear(in_features, out_features, activation="relu")
ggml_layer_conv_2d: write ag.nn.Conv2d(in_ch, out_ch, kernel)
ggml_layer_max_pooling_2d ggml_layer_global_average_pooling_2d: write ag.nn.MaxPool(size) or ag.nn.GlobalPool()
ggml_layer_flatten ggml_layer_dropout ggml_layer_embedding: write ag.nn.Flatten(), ag.nn.Dropout(rate) or
    ag.nn.Embedding(vocab_size, dim)
ggml_layer_batch_norm: write ag.nn.BatchNorm(num_features)
ggml_layer_lstm ggml_layer_gru ggml_layer_conv_1d: derive a layer of your own from ag.nn.Layer
ggml_compile: nothing is needed; the loss and the optimizer are arguments of ag.fit(model, (X, y))
ggml_predict: write ag.training.predict(model, X)
ggml_evaluate: write ag.training.evaluate(model, (X, y))
ggml_save_model ggml_load_model ggml_save_weights ggml_load_weights: write ag.ag_save_model(model, path) and
    ag.ag_load_model(path)
ggml_callback_early_stopping: write ag.training.EarlyStopping(patience=5)
ggml_schedule_step_decay ggml_schedule_cosine_decay: write ag.optim.StepSchedule or ag.optim.CosineSchedule
ggml_*: tensors and graphs of ggml are not ported; write ag.ag_tensor(values), and compute with ag.ops
gguf_load gguf_*: GGUF files are not read; write ag.load_weights(model, path) for safetensors files
""")

TENSOR = _table("""
cuda cpu to: write ag.ag_to_device(t, "vulkan:0"), or "cpu"
float: write t.astype("f32")
half: write t.astype("f16")
bfloat16: write t.astype("bf16")
double: write ag.ag_tensor(t.numpy(), dtype="f64"), which has no gradient
int long: write t.numpy().astype(int); class ids are arrays, or ag.ag_tensor(ids, dtype="i32")
type type_as: write t.astype("f32"), and t.dtype to ask
zero_ fill_ copy_ add_ sub_ mul_ div_ clamp_ fill put normal_ uniform_: assign a whole array, t.data = ..., or make another
    tensor
backward: write ag.backward(loss)
view squeeze resize view_as: write t.reshape(...)
permute: write ag.ops.transpose(t, 1, 0)
transpose swapaxes: write ag.ops.transpose(t, 1, 0), or t.T
t mT T_ H: write t.T
tolist argmax argmin any all round argsort cumsum prod nonzero: write t.numpy().{name}()
numel nelement: write t.size
dim: write t.ndim
nbytes itemsize: write t.numpy().{name}
flatten ravel: write t.reshape(-1)
clone copy: write copy.copy(t), or t[...] on the tape
requires_grad_: write ag.ag_param(t), which copies
is_leaf: write t.requires_grad and t.node is None
is_cuda: write t.device, a string
grad_fn: write t.node, which is None for what was not computed on the tape
retain_grad: nothing is needed for parameters; of other tensors no gradients are kept
register_hook: there are no hooks; ag.backward(loss) returns the gradients
unsqueeze: write t[:, None] or t.reshape(...)
expand repeat expand_as: nothing is needed: operands broadcast
contiguous: nothing is needed: every tensor is contiguous
min: write -ag.ops.max(-t), or t.numpy().min()
var: write ((t - t.mean()) ** 2).mean()
std: write ag.ops.sqrt(((t - t.mean()) ** 2).mean())
norm: write ag.ops.sqrt((t * t).sum())
dot mm bmm matmul: write t @ u
add sub mul div: write the operator, as in t + u, t - u, t * u and t / u
eq ne lt gt le ge: write the operator, as in t == u or t < u, which gives an array of truth values
split chunk: write slices, such as t[:, :2], or ag.scatter(t, devices)
topk top_k: write t.numpy().argsort(), whose last places are the largest
sort: write np.sort(t), which gives an array
masked_fill where: write mask * t + (1 - mask) * u with an array of 0 and 1
gather index_select scatter_: write slices, or ag.ops.embedding_lookup(t, ids), which takes columns
""")

LAYER = _table("""
call: write model(x)
cuda cpu: write model.to("vulkan:0"), or "cpu"
half float bfloat16 double: make the model under `with ag.ag_dtype("bf16"):`, or the type that you want
zero_grad: write optimizer.zero_grad()
named_parameters: write model.parameters().items(), a dict by name
named_modules: write model.modules()
named_children: write model.children().items()
named_buffers: write model.buffers().items()
requires_grad_: write model.freeze(), or model.unfreeze()
trainable: write model.freeze() to train no parameter of it
compile: nothing is needed; the loss and the optimizer are arguments of ag.fit(model, (X, y))
fit: write ag.fit(model, (X, y)), or a loop
predict: write model(x), or ag.training.predict(model, X)
evaluate score: write ag.training.evaluate(model, data)
weight kernel: a weight matrix is called W, as in model.W
weights trainable_weights trainable_variables get_weights: write model.parameters(), or model.state_dict() for arrays
set_weights: write model.load_state_dict(state)
save save_weights: write ag.ag_save_model(model, path)
load_weights: write ag.load_weights(model, path), or ag.ag_load_model(path)
count_params num_parameters numel: write model.n_parameters
apply: write a loop over model.modules()
get_layer get_submodule: write dict(model.modules())["layer1"], or model[0] of a sequence
add append insert pop extend: give all layers at once, ag.nn.Sequential(first, second)
input_shape output_shape build: layers are made with the sizes of their inputs, and print(model) shows them
register_forward_hook: there are no hooks; derive a layer of your own and look in its forward
device dtype: ask a parameter, as in next(iter(model.parameters().values())).{name}
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
add_param_group: make an optimizer for each group of parameters
state: write optimizer.state_dict()
minimize: write optimizer.step(ag.backward(loss))
apply_gradients: write optimizer.step(gradients)
learning_rate: write optimizer.lr
""")

OPTIMIZER_ARGUMENTS = _table("""
weight_decay: write ag.optim.AdamW(params, weight_decay=0.01), which shrinks the weights beside the gradient
betas: write beta1=0.9, beta2=0.999 to ag.optim.Adam
amsgrad maximize foreach fused capturable dampening last_epoch verbose: leave it out: there is none
momentum nesterov: write ag.optim.SGD(params, lr=0.01, momentum=0.9)
clipnorm global_clipnorm clipvalue: write ag.clip_grad_norm(params, gradients, max_norm) before the step
""")

LAYER_ARGUMENTS = _table("""
device: make the layer under `with ag.ag_device("vulkan:0"):`, or write layer.to("vulkan:0")
dtype: make the layer under `with ag.ag_dtype("bf16"):`
padding_mode: images are padded with zeros
batch_first: axes are (features, time, batch)
affine elementwise_affine track_running_stats inplace: leave it out: the layer does
padding_idx max_norm kdim vdim: leave it out: there is none
input_shape: leave it out: layers are made with the sizes of their inputs
kernel_initializer kernel_regularizer: assign values, layer.W.data = ...; weight decay is an argument of ag.optim.AdamW
""")

LOADER_ARGUMENTS = _table("""
num_workers workers prefetch_factor: write prefetch=2, batches made ahead by a thread
pin_memory persistent_workers timeout: leave it out: nothing is needed
collate_fn sampler batch_sampler worker_init_fn: give an object with len() and [i] that does it
transform transforms: let the [i] of your data set do it
dataset: give it first, DataLoader(dataset)
target_transform: class ids are 0, 1, ... in the order of the folders; change batch.y
""")

# What others call an argument, and what it may be here.
SYNONYMS: Mapping[str, tuple[str, ...]] = {name: tuple(here.split("|")) for name, here in findall(r"(\w+)=(\S+)", """
kernel_size=kernel|size pool_size=size in_channels=in_ch out_channels=out_ch filters=out_ch strides=stride p=rate
prob=rate drop_rate=rate num_embeddings=vocab_size input_dim=vocab_size|in_features embedding_dim=dim
output_dim=dim|out_features normalized_shape=num_features embed_dim=d_model hidden_size=d_model num_heads=n_heads
heads=n_heads attn_dropout=dropout in_dim=in_features out_dim=out_features units=out_features use_bias=bias epsilon=eps
classes=num_classes n_classes=num_classes learning_rate=lr retain_graph=retain n_epochs=epochs num_epochs=epochs
max_epochs=epochs max_iter=epochs validation_data=valid val_data=valid eval_set=valid random_state=seed root=path
generator=seed img_size=size image_size=size transforms=transform model=model_fn|make_model loss=loss_fn
criterion=loss|loss_fn hidden_layer_sizes=hidden n_iter_no_change=patience alpha=weight_decay start_dim=dim axes=dim
negative_slope=slope eta_min=lr_min warmup_steps=steps total_steps=T_max filename=path filepath=path f=path x=X
""")}

TRAINING_ARGUMENTS = _table("""
epochs n_epochs num_epochs max_epochs: write n_iter, a number of steps, or ag.fit(model, (X, y), epochs=10), which
    passes over the data
steps n_steps num_steps max_steps iterations: write n_iter, a number of steps
batch_size: write batch, the samples of a step, or give data=ag.data.DataLoader(x, y, batch_size=32)
callbacks: write callback, one function
valid validation_data metrics: write ag.fit(model, train, valid, metrics=...)
""")

FIT_ARGUMENTS = _table("""
validation_split: write train, valid = ag.data.split(data, 0.8), and fit(model, train, valid)
X y data: give both as one argument, (X, y)
callback: write callbacks
device: write devices, a list of names such as ["vulkan:0"]
steps_per_epoch initial_epoch workers: leave it out: an epoch is a pass over all samples
early_stopping: write callbacks=[ag.training.EarlyStopping(patience=5)]
restore_best_weights save_best_only: add ag.training.BestWeights() to the callbacks
""")

ESTIMATOR_ARGUMENTS = _table("""
early_stopping: write patience=5, epochs without a better one
device: write devices, a list of names such as ["vulkan:0"]
solver momentum nesterovs_momentum beta_1 beta_2 epsilon: write optimizer=lambda p: ag.optim.SGD(p, lr=0.1, momentum=0.9)
warm_start: leave it out: fit begins anew; ag.fit(clf.model_, (X, ids)) goes on
tol shuffle power_t learning_rate_init max_fun n_jobs: leave it out: there is none; the rate is lr
""")

# Of all functions.
ANY_ARGUMENTS = _table("""
requires_grad: write ag.ag_param(values), of which gradients are computed
create_graph: leave it out: gradients of gradients are not supported
inplace out copy: leave it out: every result is a new tensor
use_reentrant fullgraph: leave it out: nothing is needed
device: write ag.ag_to_device(t, "vulkan:0"), or compute under `with ag.ag_device("vulkan:0"):`
dtype: write t.astype("bf16"), or compute under `with ag.ag_dtype("bf16"):`
reduction size_average: a loss is the mean over the samples; multiply it by their number for the sum
ignore_index pos_weight: leave those samples out, or write a weighted mean of your own
training: modes are of layers: ag.nn.Dropout(rate), and ag.nn.eval(model)
opset_version: leave it out: the file says which it needs
map_location: models are read to the default device, which ag.ag_device("vulkan:0") sets
""")

ARGUMENTS: Mapping[str, Mapping[str, str]] = {  # by the namespace in which a function is
    "ag.nn": LAYER_ARGUMENTS, "ag.optim": OPTIMIZER_ARGUMENTS, "ag.data": LOADER_ARGUMENTS,
    "ag.training": FIT_ARGUMENTS, "ag.training.estimators": ESTIMATOR_ARGUMENTS, "ag.parallel": TRAINING_ARGUMENTS}
