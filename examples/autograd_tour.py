"""A tour of the automatic differentiation, one idea after the other. Run it as `python examples/autograd_tour.py`."""

import numpy as np

import ag

ag.ag_seed(0)

print("1. Tensors are dense arrays on a device; samples are columns.")
x = ag.ag_tensor(np.arange(8).reshape(2, 4) / 8)  # 2 features, 4 samples
print(x, x.shape, x.dtype, x.device)

print("\n2. Inside with_grad_tape, results remember how they were computed from parameters.")
W = ag.ag_param([[1.0, -2.0]])
with ag.with_grad_tape():
    loss = ag.ag_mean((W @ x - 1.0) ** 2)
print("recorded:", loss.requires_grad, " outside a tape:", (W @ x).requires_grad)

print("\n3. backward walks the record from the loss to the parameters.")
grads = ag.backward(loss)
by_hand = 2 / 4 * (W.numpy() @ x.numpy() - 1) @ x.numpy().T
print("gradient:", grads[W].numpy(), " by hand:", by_hand)
assert np.allclose(grads[W].numpy(), by_hand)
print("W.grad adds up over calls until it is set to None:", W.grad.numpy())

print("\n4. ag_gradcheck compares gradients with finite differences, in float64.")
model = ag.ag_sequential(ag.ag_linear(2, 8, activation="tanh"), ag.ag_linear(8, 1))
target = ag.ag_tensor([[0.0, 1.0, 1.0, 0.0]])


def loss_of_weights(t):
    hidden = ag.ag_tanh(t["W1"] @ x.numpy() + t["b1"])
    return ag.ag_mse_loss(t["W2"] @ hidden + t["b2"], target.numpy())


weights = dict(zip(("W1", "b1", "W2", "b2"), model.parameters().values(), strict=True))
assert ag.ag_gradcheck(loss_of_weights, weights)

print("\n5. A training step, captured: recorded on its first call, replayed on the following ones.")
optimizer = ag.optimizer_adam(model.parameters(), lr=0.05)


def step(inputs, targets):
    with ag.with_grad_tape():
        loss = ag.ag_mse_loss(model(inputs), targets)
    optimizer.step(ag.backward(loss))
    optimizer.zero_grad()
    return loss


captured = ag.ag_capture(step)
first = captured(x, target).item()
for _ in range(199):
    last = captured(x, target)
print(f"loss {first:.4f} -> {last.item():.6f} in {optimizer.t} steps of {captured.program.launches} launches each")
assert last.item() < first

print("\n6. Dropout draws from a counter-based generator: same seed, same mask, on every device.")
dropout = ag.ag_dropout(0.5)
print("training:", dropout(ag.ag_tensor(np.ones(8))).numpy().ravel())
print("eval:    ", ag.ag_eval(dropout)(ag.ag_tensor(np.ones(8))).numpy().ravel())

print("\n7. Devices: the same code, and the same gradient up to rounding, on all of them.")
for device in ["cpu", *(info.name for info in ag.ag_vulkan_devices())]:
    with ag.ag_device(device):
        V = ag.ag_param(W.numpy())
        with ag.with_grad_tape():
            loss = ag.ag_mean((V @ x.numpy() - 1.0) ** 2)
        gradient = ag.backward(loss)[V].numpy()
    print(f"{device:9} {gradient}")
    assert np.allclose(gradient, by_hand, rtol=1e-5)
try:
    ag.ag_tensor(x.numpy(), device="cpu:1") + x
except ag.DeviceError as error:
    print(error)
