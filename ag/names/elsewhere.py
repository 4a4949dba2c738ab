"""Names of other libraries: each with the end of the message "there is no NAME; ...".

Every ``ag.`` name in a text exists, which tests/test_habits.py checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from re import findall


def _table(text: str) -> dict[str, str]:
    """Read lines such as ``cuda cpu: write ...``, where ``{name}`` is each of the names; an indented line goes on."""
    rows = [line.split(": ", 1) for line in text.strip().replace("\n    ", " ").split("\n")]
    return {name: hint.replace("{name}", name) for names, hint in rows for name in names.split()}


def _written(text: str) -> dict[str, str]:
    """Read pairs such as ``mm|bmm=t@u``: names, and what to write in their place."""
    pairs = findall(r"(\S+?)=(\S+)", text)
    return {name: f"write {code.replace(',', ', ')}" for names, code in pairs for name in names.split("|")}


# What other libraries call something, and what to do here.  ``ggml_*`` is every other name that begins so.
ELSEWHERE = _written("""
Parameter|parameter=ag.ag_param(values) MeanSquaredError=ag.ops.mse_loss(pred,target)
Dense|ggml_layer_dense=ag.nn.Linear(in_features,out_features) inference_mode=ag.no_grad() mm=a@b
BatchNormalization|ggml_layer_batch_norm=ag.nn.BatchNorm(num_features) stop_gradient=t.detach()
Conv2D|ggml_layer_conv_2d=ag.nn.Conv2d(in_ch,out_ch,kernel) random_split|train_test_split=ag.data.split(data,0.8)
LayerNormalization=ag.nn.LayerNorm(num_features) MaxPooling2D|ggml_layer_max_pooling_2d=ag.nn.MaxPool(size)
AveragePooling2D=ag.nn.AvgPool(size) ggml_layer_dropout=ag.nn.Dropout(rate)
GlobalAveragePooling2D|ggml_layer_global_average_pooling_2d=ag.nn.GlobalPool()
ggml_layer_flatten=ag.nn.Flatten() ggml_layer_embedding=ag.nn.Embedding(vocab_size,dim) clip|clip_=ag.ops.clamp(t,lo,hi)
CosineSimilarity=ag.ops.cosine_similarity(t,u)
scaled_dot_product_attention=ag.ops.attention(q,k,v)
RotaryEmbedding|rotary_embedding|apply_rotary_pos_emb=ag.ops.rope(q,k,heads=heads)
tensor=ag.ag_tensor(values) onnx=ag.export_onnx(model,path,example) cat|Concatenate=ag.ops.concat(tensors,dim=0)
manual_seed|set_random_seed=ag.ag_seed(0) compile|jit=ag.ag_capture(step) enable_grad=ag.with_grad_tape()
StepLR|MultiStepLR|ExponentialLR|ggml_schedule_step_decay=ag.optim.StepSchedule(optimizer,step_size)
CosineAnnealingLR|CosineDecay|ggml_schedule_cosine_decay=ag.optim.CosineSchedule(optimizer,T_max)
LinearLR|OneCycleLR=ag.optim.WarmupSchedule(optimizer,steps,after) CSVLogger=ag.training.CSVLog(path)
clip_grad_norm_|clip_grad_value_=ag.clip_grad_norm(params,grads,max_norm) is_tensor=ag.is_ag_tensor(x)
train_solutions=ag.data.imagenet.train_solutions(path) minibatch=ag.data.imagenet.minibatch(images,nsamples)
topkaccuracy=ag.data.imagenet.topk_accuracy(out,ids,k) TensorDataset=ag.data.DataLoader(x,y)
Model|ggml_model_sequential|ggml_model=ag.nn.Sequential(first,second) ggml_evaluate=ag.training.evaluate(model,(X,y))
ggml_predict=ag.training.predict(model,X) ggml_callback_early_stopping=ag.training.EarlyStopping(patience=5)
ggml_save_model|ggml_save_weights=ag.ag_save_model(model,path) ggml_load_model|ggml_load_weights=ag.ag_load_model(path)
""") | _table("""
Module: derive models from ag.nn.Layer
SparseCategoricalCrossentropy CategoricalCrossentropy: write ag.ops.cross_entropy(logits, labels), a function
bce_loss BinaryCrossentropy: write ag.ops.binary_cross_entropy_with_logits(logits, target), a function
functional: functions are in ag.ops
ModuleList ParameterList ModuleDict ParameterDict: keep them in a plain list or a plain dict, which is looked into
Activation: write the layer, ag.nn.ReLU(), the function, as in ag.nn.Sequential(ag.nn.Linear(4, 8), ag.ops.relu), or
    the argument of a layer, activation="relu"
SwiGLU swiglu: compose it of ag.ops, as ag.ops.silu(a) * b
Input InputLayer ggml_input: leave it out; layers are made with the sizes of their inputs
MLPClassifier MLPRegressor: write AgClassifier(hidden=(64,)) or AgRegressor(hidden=(64,)); scikit-learn must be there
layers models losses optimizers callbacks metrics: layers are in ag.nn, losses in ag.ops, optimizers in ag.optim,
    callbacks and metrics in ag.training
to_categorical: class ids are targets as they are; or write ag.ops.one_hot(ids, n)
MNIST CIFAR10 datasets: there are ag.data.load_digits() and ag.data.load_iris(); read other arrays or images yourself
transforms: write a function of an image (height, width, 3), ag.data.ImageFolder(path, size, transform=function)
set_grad_enabled: write `with ag.no_grad():`, or ag.with_grad_tape()
RMSprop RMSProp Adagrad Adadelta NAdam RAdam Adamax LBFGS Lion Rprop: there are ag.optim.SGD, ag.optim.Adam and
    ag.optim.AdamW
from_numpy as_tensor asarray array: make the array with numpy and pass it to ag.ag_tensor
expand_dims dot: write np.{name}, which takes tensors and records what it does
argsort cumsum cumprod sort allclose: write np.{name}, which takes
    tensors and gives arrays, without a gradient
topk top_k: write np.argsort(t), which gives an array
sample: write ag.ops.multinomial(ag.ops.softmax(t), 1), whose classes are the first axis
RNN LSTM lstm GRU gru Transformer TransformerEncoder TransformerEncoderLayer ggml_layer_lstm: derive a layer of your own
    from ag.nn.Layer, and write its forward with ag.ops
reset: ag.ag_seed(0) begins random numbers anew, and ag.ag_shutdown() closes the devices
float32 float16 bfloat16 float64 int32 int64 long float double half: element types are strings, such as dtype="f32" or
    dtype="bf16"
set_default_dtype autocast amp GradScaler: write ag.ag_dtype("bf16") before the model is made
device set_default_device cuda: devices are strings; write ag.ag_device("vulkan:0") for the default one;
    ag.ag_vulkan_devices() lists them
save: write ag.ag_save_model(model, path), or ag.ag_save_checkpoint(path, model, optimizer)
load: write ag.ag_load_model(path), or ag.ag_load_checkpoint(path, model, optimizer)
grad gradient value_and_grad GradientTape: write ag.backward(loss), which returns the gradients
Function custom_op custom_gradient custom_vjp: a function of ag.ops has its gradient; docs/adding_an_op.md adds an op
lr_scheduler: schedules are ag.optim.StepSchedule, ag.optim.CosineSchedule and ag.optim.WarmupSchedule
LambdaLR PolynomialLR LearningRateScheduler: set optimizer.lr yourself, or derive from ag.optim.Schedule
WandbLogger LambdaCallback: derive a callback of your own from ag.training.Callback
DistributedDataParallel: write ag.parallel.DataParallel(model), or ag.dp_train over ranks
DeviceFailure: write ag.DeviceError; a lost process is an ag.RankLostError
average_model_weights average_weights: write ag.syncgrads([m.state_dict() for m in models]), and load_state_dict with
    its t.numpy()
all_reduce allreduce: write ag.syncgrads(sets, world=world), or comm.all_reduce(array) of an ag.DistributedWorld
prepare_training: write ag.start(loss, data, model_fn), which prepares and trains
train ggml_fit: write ag.fit(model, (X, y)) or ag.start(loss, data, model_fn) to train, ag.nn.train(model) for its mode
Dataset Subset ConcatDataset: any object with len() and [i] is a data set; give it to ag.data.DataLoader
ggml_compile: nothing is needed; the loss and the optimizer are arguments of ag.fit(model, (X, y))
ggml_*: tensors and graphs of ggml are not ported; write ag.ag_tensor(values), and compute with ag.ops
gguf_*: GGUF files are not read; write ag.load_weights(model, path) for safetensors files
""")

TENSOR = ELSEWHERE | _written("""
float|type=t.astype("f32") half=t.astype("f16") bfloat16=t.astype("bf16") view=t.reshape(...)
t|mT|T_=t.T numel|nelement=t.size dim=t.ndim flatten|ravel=t.reshape(-1)
dot|mm=t@u nbytes=t.numpy().nbytes backward=ag.backward(loss)
""") | _table("""
cuda cpu to: write ag.ag_to_device(t, "vulkan:0"), or "cpu"
double: write ag.ag_tensor(t.numpy(), dtype="f64"), which has no gradient
int long: write t.numpy().astype(int); class ids are arrays, or ag.ag_tensor(ids, dtype="i32")
zero_ fill_ copy_ add_ sub_ mul_ div_ clamp_ fill put: assign a whole array, t.data = ..., or make another tensor
transpose: write ag.ops.transpose(t, 1, 0), t.swapaxes(0, 1), or t.T
tolist argsort cumsum: write t.numpy().{name}()
clone copy: write copy.copy(t), or t[...] on the tape
requires_grad_: write ag.ag_param(t), which copies
is_leaf: write t.requires_grad and t.node is None
grad_fn: write t.node, which is None for what was not computed on the tape
expand_as: nothing is needed: operands broadcast
contiguous retain_grad: nothing is needed
topk top_k: write t.numpy().argsort(), whose last places are the largest
register_hook: there are no hooks; ag.backward(loss) returns the gradients
""")

LAYER = _written("""
call=model(x) zero_grad=optimizer.zero_grad() named_modules=model.modules() named_children=model.children().items()
named_buffers=model.buffers().items() set_weights=model.load_state_dict(state) requires_grad_|trainable=model.freeze()
save|save_weights=ag.ag_save_model(model,path) load_weights=ag.load_weights(model,path)
count_params|num_parameters=model.n_parameters get_layer|get_submodule=dict(model.modules())["layer1"]
weights|trainable_variables|get_weights=model.parameters() add|append|pop|extend=ag.nn.Sequential(first,second)
""") | _table("""
cuda cpu: write model.to("vulkan:0"), or "cpu"
half float bfloat16 double: make the model under `with ag.ag_dtype("bf16"):`, or the type that you want
named_parameters: write model.parameters().items(), a dict by name
compile: nothing is needed; the loss and the optimizer are arguments of ag.fit(model, (X, y))
fit: write ag.fit(model, (X, y)), or a loop
evaluate score: write ag.training.evaluate(model, data)
predict: write model(x), or ag.training.predict(model, X)
weight kernel: a weight matrix is called W, as in model.W
apply: write a loop over model.modules()
input_shape output_shape build: layers are made with the sizes of their inputs, and print(model) shows them
register_forward_hook: there are no hooks; derive a layer of your own and look in its forward
device dtype: ask a parameter, as in next(iter(model.parameters().values())).{name}
register_buffer: assign the tensor: self.name = ag.ag_tensor(values) is a buffer
register_parameter: assign the parameter: self.name = ag.ag_param(values)
add_module: assign the layer: self.name = layer
model_replicas: a DataParallel makes replicas for each pass, of its one set of weights, model.module
all_reduce_gradients sync_gradients: nothing is needed: backward gives the parameters the gradients of all replicas
""")

BATCH = _written("data|input|inputs|features|images=batch.x target|targets|label|labels=batch.y")
LOADER = _table("dataset sampler: write loader.n_samples for their number, and keep the data beside the loader")
HISTORY = _table('history: write history["loss"], or history.rows')
ESTIMATOR = _written("""
coefs_|intercepts_=clf.model_.state_dict() loss_|loss_curve_=clf.history_["loss"] n_iter_=clf.history_.epochs
best_loss_|validation_scores_=clf.history_["val_loss"] predict_log_proba|decision_function=np.log(clf.predict_proba(X))
partial_fit=ag.fit(clf.model_,(X,ids))
""")
OPTIMIZER = _table("""
param_groups: settings are attributes, such as optimizer.lr, and parameters optimizer.params
add_param_group: make an optimizer for each group of parameters
minimize: write optimizer.step(ag.backward(loss))
apply_gradients: write optimizer.step(gradients)
learning_rate: write optimizer.lr
""")

# What others call an argument, and what it may be here.
SYNONYMS: Mapping[str, tuple[str, ...]] = {name: tuple(here.split("|")) for name, here in findall(r"(\w+)=(\S+)", """
kernel_size=kernel|size pool_size=size in_channels=in_ch out_channels=out_ch filters=out_ch strides=stride p=rate
prob=rate min=lo max=hi drop_rate=rate num_embeddings=vocab_size input_dim=vocab_size|in_features embedding_dim=dim
output_dim=dim|out_features normalized_shape=num_features embed_dim=d_model hidden_size=d_model num_heads=n_heads
heads=n_heads num_kv_heads=kv_heads is_causal=causal attn_dropout=dropout in_dim=in_features out_dim=out_features
units=out_features use_bias=bias epsilon=eps
classes=num_classes n_classes=num_classes learning_rate=lr learning_rate_init=lr retain_graph=retain n_epochs=epochs
num_epochs=epochs max_epochs=epochs max_iter=epochs random_state=seed generator=seed root=path filename=path
filepath=path img_size=size image_size=size transforms=transform model=model_fn|make_model loss=loss_fn criterion=loss
device=name dtype=name loss_fn=loss hidden_layer_sizes=hidden n_iter_no_change=patience alpha=weight_decay
negative_slope=slope min_val=lo max_val=hi weight=w|gamma eta_min=lr_min warmup_steps=steps callback=callbacks
batch=batch_size
""")}

ANY_ARGUMENTS = _table("""
requires_grad: write ag.ag_param(values), of which gradients are computed
create_graph: leave it out: gradients of gradients are not supported
inplace out copy use_reentrant: leave it out: every result is a new tensor
device: write ag.ag_to_device(t, "vulkan:0"), or compute under `with ag.ag_device("vulkan:0"):`
dtype: write t.astype("bf16"), or compute under `with ag.ag_dtype("bf16"):`
reduction size_average: a loss is the mean over the samples; ag.ops.cross_entropy has other reductions
opset_version: leave it out: the file says which it needs
map_location: models are read to the default device, which ag.ag_device("vulkan:0") sets
""")

# By the namespace of the function.
ARGUMENTS: Mapping[str, Mapping[str, str]] = {space: _table(text) for space, text in {
    "ag.optim": """
weight_decay: write ag.optim.AdamW(params, weight_decay=0.01), which shrinks the weights beside the gradient
betas: write beta1=0.9, beta2=0.999 to ag.optim.Adam
amsgrad maximize foreach fused dampening last_epoch: leave it out: there is none
momentum nesterov: write ag.optim.SGD(params, lr=0.01, momentum=0.9)
clipnorm clipvalue: write ag.clip_grad_norm(params, gradients, max_norm) before the step
""", "ag.nn": """
device: make the layer under `with ag.ag_device("vulkan:0"):`, or write layer.to("vulkan:0")
dtype: make the layer under `with ag.ag_dtype("bf16"):`
batch_first: axes are (features, time, batch)
track_running_stats: leave it out: batch norm has them, and instance norm none
return_indices divisor_override antialias recompute_scale_factor: leave it out: there is none
padding_idx max_norm input_shape: leave it out: there is none
kernel_initializer kernel_regularizer: assign values, layer.W.data = ...; ag.optim.AdamW has the weight decay
""", "ag.data": """
num_workers workers prefetch_factor: write prefetch=2, batches made ahead by a thread
pin_memory persistent_workers: leave it out: nothing is needed
collate_fn sampler batch_sampler worker_init_fn: give an object with len() and [i] that does it
transform: let the [i] of your data set do it
dataset: give it first, DataLoader(dataset)
target_transform: class ids are 0, 1, ... in the order of the folders; change batch.y
""", "ag.parallel": """
epochs n_epochs num_epochs max_epochs: write n_iter, a number of steps, or ag.fit(model, (X, y), epochs=10), which
    passes over the data
steps n_steps num_steps max_steps iterations: write n_iter, a number of steps
batch_size: write batch, the samples of a step, or give data=ag.data.DataLoader(x, y, batch_size=32)
callbacks: write callback, one function
valid validation_data metrics: write ag.fit(model, train, valid, metrics=...)
""", "ag.training": """
validation_data val_data eval_set: write valid=(X, y)
validation_split: write train, valid = ag.data.split(data, 0.8), and fit(model, train, valid)
x X y data: give both as one argument, (X, y)
device: write devices, a list of names such as ["vulkan:0"]
steps_per_epoch initial_epoch: leave it out: an epoch is a pass over all samples
early_stopping: write callbacks=[ag.training.EarlyStopping(patience=5)]
restore_best_weights save_best_only: add ag.training.BestWeights() to the callbacks
""", "ag.training.estimators": """
early_stopping: write patience=5, epochs without a better one
device: write devices, a list of names such as ["vulkan:0"]
solver momentum beta_1 beta_2 epsilon: write optimizer=lambda p: ag.optim.SGD(p, lr=0.1, momentum=0.9)
warm_start: leave it out: fit begins anew; ag.fit(clf.model_, (X, ids)) goes on
tol shuffle power_t max_fun n_jobs: leave it out: there is none
"""}.items()}
