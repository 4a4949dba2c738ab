"""ag_resnet: torchvision's parameters, logits and gradients; initial weights; files; stacks on any replicas."""

from __future__ import annotations

import json
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.errors import expect_error
from helpers.ranks import dealt, outcomes
from nn.resnet.weights import images, kept, labels, state

import ag
from ag.parallel.comm.comm import Comm

FOUND = np.load(Path(__file__).parent / "resnet" / "torchvision.npz")
NAMES = {depth: json.loads(FOUND[f"names{depth}"].tobytes()) for depth in (18, 34, 50, 101, 152)}
CLOSE = 1e-4


def our_name(theirs: str) -> str:
    """Return the name that torchvision's tensor has here; docs/interop.md has the same lines."""
    path, _, tensor = theirs.rpartition(".")
    norm = path.rpartition(".")[2].startswith("bn") or path.endswith("downsample.1")
    ours = {"weight": "gamma" if norm else "W", "bias": "beta" if norm else "b"}.get(tensor, tensor)
    return f"{path}.{ours}".replace(".", "_")


def loaded(depth: int) -> Any:
    model = ag.ag_resnet(depth, 1000)
    shapes = {name: x.shape for name, x in model.named_tensors().items()}
    theirs = {our_name(name): x for name, x in state(NAMES[depth]["shapes"]).items()}
    model.load_state_dict({name: x.reshape(shapes[name]) for name, x in theirs.items()})
    return model


def assert_close(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Within 1e-4 of the largest."""
    assert found.shape == expected.shape and np.abs(expected).max() > 0, what
    assert np.abs(found - expected).max() <= CLOSE * np.abs(expected).max(), what


def compare(model: Any, depth: int, mode: str) -> ag.Tensor:
    """Compare the loss and the gradients of a step with torchvision's; the logits."""
    with ag.with_grad_tape():
        logits = model.train(mode == "train")(ag.ag_tensor(images().transpose(1, 2, 3, 0)))
        loss = ag.ag_softmax_cross_entropy_loss(logits, labels())
    assert loss.item() == pytest.approx(float(FOUND[f"loss_{mode}{depth}"]), rel=CLOSE)
    grads, ours = ag.backward(loss), model.parameters()
    assert ours.keys() == {our_name(name) for name in NAMES[depth]["gradients"]}
    for name, theirs in zip(NAMES[depth]["gradients"], FOUND[f"gradients_{mode}{depth}"], strict=True):
        assert_close(kept(grads[ours[our_name(name)]].numpy()), theirs, f"gradient of {name}")
    return logits


@pytest.mark.slow  # changes with this folder only
@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
def test_torchvisions_weights_give_its_logits_and_gradients(depth: int) -> None:
    """In float64 where gradients pass more than 50 layers, as float32 has them right to 4e-4 there."""
    with ag.ag_dtype("f64" if depth > 50 else "f32"):
        logits = compare(loaded(depth), depth, "eval").numpy()
    assert_close(logits.T[:, ::10], FOUND[f"logits{depth}"], "logits")


@pytest.mark.slow
@pytest.mark.parametrize("depth", [18, 34, 50])
def test_gradients_and_statistics_in_train_mode(depth: int) -> None:
    """In float64, for in float32 those of ResNet-50 are right to 2 % only, in PyTorch too."""
    previous = ag.ag_dtype("f64")
    try:
        model = loaded(depth)
        compare(model, depth, "train")
    finally:
        ag.ag_dtype(previous)
    for name, theirs in zip(NAMES[depth]["statistics"], FOUND[f"statistics{depth}"], strict=True):
        assert_close(kept(model.buffers()[our_name(name)].numpy()), theirs, name)


@pytest.mark.slow
def test_a_wrong_weight_is_seen() -> None:
    """The stride of ResNet-50 in another convolution, or a block less, would be: here it is one weight."""
    model = loaded(18)
    model.layer3["0"].downsample["1"].gamma.data = model.layer3["0"].downsample["1"].gamma.data * 1.01
    logits = ag.ag_eval(model)(images().transpose(1, 2, 3, 0).copy()).numpy()
    with pytest.raises(AssertionError):
        assert_close(logits.T[:, ::10], FOUND["logits18"], "logits")


@pytest.mark.parametrize(("depth", "count"), [
    (18, 11_689_512), pytest.param(34, 21_797_672, marks=pytest.mark.slow),
    pytest.param(50, 25_557_032, marks=pytest.mark.slow)])
def test_parameters_at_1000_classes(depth: int, count: int) -> None:
    model = ag.ag_resnet(depth, 1000)
    assert sum(p.size for p in model.parameters().values()) == count
    assert {name: x.size for name, x in model.named_tensors().items()} == {
        our_name(name): np.prod(shape) for name, shape in NAMES[depth]["shapes"].items()}


def test_resnet_50_halves_the_image_in_its_3x3_convolution() -> None:
    block = ag.ag_resnet(50, 10, width=4).layer2["0"]
    assert [conv.stride for conv in (block.conv1, block.conv2, block.conv3)] == [(1, 1), (2, 2), (1, 1)]


def test_initial_weights_are_hes() -> None:
    model = ag.ag_resnet(34, 10, width=16)
    for name, x in model.parameters().items():
        w = x.numpy()
        if w.ndim == 4:
            out, _, height, width = w.shape
            assert w.std() == pytest.approx(sqrt(2 / (out * height * width)), rel=0.1), name
            assert abs(w.mean()) < 0.1 * w.std()
        elif name.endswith(("gamma", "beta")):
            assert (w == name.endswith("gamma")).all()


@pytest.mark.parametrize(("small", "last"), [(False, 1), (True, 4)])
def test_sizes(small: bool, last: int) -> None:
    model = ag.ag_resnet(18, 7, width=4, small_input=small)
    sizes = []
    before = model.avgpool.forward
    model.avgpool.forward = lambda x: sizes.append(x.shape) or before(x)
    assert model(np.ones((3, 32, 32, 2))).shape == (7, 2)
    assert sizes == [(32, last, last, 2)]
    assert (model.maxpool is None) == small


@pytest.mark.parametrize(("given", "fragments"), [
    ({"depth": 19}, ["depth is 19", "18, 34, 50, 101 or 152"]), ({"depth": 18.0}, ["depth is 18.0"]),
    ({"depth": True}, ["depth is True"]), ({"num_classes": 0}, ["num_classes is 0"]),
    ({"width": 1.5}, ["width is 1.5"]), ({"small_input": 1}, ["small_input is 1"])])
def test_what_is_refused(given: dict[str, Any], fragments: list[str]) -> None:
    with expect_error(f"ag_resnet with {given}", ValueError, "ag_resnet:", *fragments):
        ag.ag_resnet(**{"depth": 18, "num_classes": 2, "width": 4, **given})


def test_images_of_another_shape_are_named() -> None:
    with expect_error("ag_resnet of grey images", ag.ShapeError, "(1, 8, 8, 2)", "(3, height, width, batch)"):
        ag.ag_resnet(18, 2, width=4)(np.ones((1, 8, 8, 2)))


def test_a_file_describes_it(tmp_path: Path) -> None:
    model = ag.ag_sequential(ag.ag_resnet(18, 5, width=4, small_input=True), ag.ag_linear(5, 2))
    x = np.random.default_rng(0).normal(size=(3, 8, 8, 4)).astype(np.float32)
    model(x)  # moves the running statistics
    ag.ag_save_model(model, tmp_path / "m")
    again = ag.ag_load_model(tmp_path / "m")
    assert repr(again) == repr(model)
    assert np.array_equal(again(x).numpy(), ag.ag_eval(model)(x).numpy())


@pytest.mark.parametrize("change", [
    lambda m: setattr(m, "fc", ag.ag_linear(32, 5, activation="relu")),
    lambda m: setattr(m.layer1["0"].bn1, "eps", 0.1),
    ag.SyncBatchNorm.convert], ids=["another layer", "a setting", "synchronous"])
def test_a_changed_one_is_a_model_of_its_own(tmp_path: Path, change: Any) -> None:
    model = ag.ag_resnet(18, 5, width=4)
    change(model)
    ag.ag_save_model(model, tmp_path / "m")
    with expect_error("a ResNet that was changed", ag.CheckpointError, "a model of your own"):
        ag.ag_load_model(tmp_path / "m")
    ag.ag_load_model(tmp_path / "m", lambda: change(again := ag.ag_resnet(18, 5, width=4)) or again)


def train(devices: list[str], world: Comm | None = None, batch: int = 64, n_iter: int = 3) -> ag.DPResult:
    rng = np.random.default_rng(3)
    data = [(rng.normal(size=(3, 8, 8)).astype(np.float32), i % 4) for i in range(70)]
    return ag.dp_train(lambda: ag.ag_resnet(18, 4, width=4, small_input=True), data, ag.ag_softmax_cross_entropy_loss,
                       lambda m, s: m(s[0]), lambda s: s[1], devices=devices, batch=batch, stack=16, n_iter=n_iter,
                       lr=1e-2, seed=2, verbose=False, world=world)


def bits(result: ag.DPResult) -> list[bytes]:
    return [result.loss_history.tobytes(), *(x.tobytes() for x in result.model.state_dict().values())]


def test_a_stack_gives_the_same_bits_on_two_replicas() -> None:
    assert bits(train(["cpu", "cpu:1"], batch=32, n_iter=1)) == bits(train(["cpu"], batch=32, n_iter=1))


@pytest.mark.slow
def test_stacks_give_the_same_bits_on_any_replicas_and_ranks() -> None:
    alone = bits(train(["cpu"]))
    assert bits(train(["cpu", "cpu:1"])) == alone
    assert bits(train([f"cpu:{i}" for i in range(4)])) == alone
    for result in outcomes(2, lambda comm: train(dealt(2, 2)[comm.rank], comm)):
        assert bits(result) == alone
