"""`load_weights` with files as Hugging Face and torchvision write them: names, shards, and matrices that lie turned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from helpers.errors import expect_error
from nn.resnet import weights as torchvision

import ag

D, HEADS, VOCAB, TIME = 8, 2, 11, 6
RNG = np.random.default_rng(0)
Array = np.ndarray[Any, Any]


class Attention(ag.Layer):
    def __init__(self) -> None:
        self.c_attn, self.c_proj = ag.ag_linear(D, 3 * D), ag.ag_linear(D, D)

    def forward(self, x: Any) -> Any:
        q, k, v = (self.c_attn(x)[i * D : (i + 1) * D] for i in range(3))
        return self.c_proj(ag.ag_attention(q, k, v, causal=True, heads=HEADS))


class Network(ag.Layer):
    def __init__(self) -> None:
        self.c_fc, self.c_proj = ag.ag_linear(D, 4 * D, "gelu"), ag.ag_linear(4 * D, D)

    def forward(self, x: Any) -> Any:
        return self.c_proj(self.c_fc(x))


class Block(ag.Layer):
    def __init__(self) -> None:
        self.ln_1, self.attn, self.ln_2, self.mlp = ag.ag_layer_norm(D), Attention(), ag.ag_layer_norm(D), Network()

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(ag.Layer):
    """GPT-2 with the names of Hugging Face, in a list, and the words' vectors as its head."""

    def __init__(self) -> None:
        self.wte, self.wpe = ag.ag_embedding(VOCAB, D), ag.ag_embedding(TIME, D)
        self.h = [Block(), Block()]
        self.ln_f = ag.ag_layer_norm(D)

    def forward(self, ids: Any) -> Any:
        x = self.wte(ids) + self.wpe(np.arange(len(ids))[:, None])
        for block in self.h:
            x = block(x)
        return self.wte.weight.T @ self.ln_f(x)


def gpt2_file() -> dict[str, Array]:
    """Tensors as ``GPT2LMHeadModel`` saves them."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (VOCAB, D), "wpe.weight": (TIME, D)}
    for i in range(2):
        for name, shape in {"attn.c_attn": (D, 3 * D), "attn.c_proj": (D, D), "mlp.c_fc": (D, 4 * D),
                            "mlp.c_proj": (4 * D, D), "ln_1": (D,), "ln_2": (D,)}.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[-1:]}
        shapes[f"h.{i}.attn.bias"] = (1, 1, TIME, TIME)
    shapes |= {"ln_f.weight": (D,), "ln_f.bias": (D,)}
    return {f"transformer.{name}": 0.5 * RNG.standard_normal(shape).astype(np.float32)
            for name, shape in shapes.items()}


def gpt2_logits(file: dict[str, Array], ids: Array) -> Array:
    """Compute what transformers does, of [batch, time] ids: ``Conv1D`` is ``x @ W + b``."""
    def conv(x: Array, name: str) -> Array:
        return x @ file[f"transformer.{name}.weight"] + file[f"transformer.{name}.bias"]

    def norm(x: Array, name: str) -> Array:
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return y * file[f"transformer.{name}.weight"] + file[f"transformer.{name}.bias"]

    x = file["transformer.wte.weight"][ids] + file["transformer.wpe.weight"][: ids.shape[1]]
    for i in range(2):
        parts = np.split(conv(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3, -1)
        q, k, v = (p.reshape(*ids.shape, HEADS, -1).transpose(0, 2, 1, 3) for p in parts)
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(D // HEADS)
        scores = np.where(np.tri(ids.shape[1], dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        heads = (weights / weights.sum(-1, keepdims=True)) @ v
        x = x + conv(heads.transpose(0, 2, 1, 3).reshape(*ids.shape, D), f"h.{i}.attn.c_proj")
        y = conv(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        y = ag.ag_gelu(y.reshape(-1, 4 * D)).numpy().reshape(y.shape)
        x = x + conv(y, f"h.{i}.mlp.c_proj")
    logits: Array = norm(x, "ln_f") @ file["transformer.wte.weight"].T
    return logits


@pytest.fixture
def file(tmp_path: Path) -> tuple[dict[str, Array], Path]:
    arrays, path = gpt2_file(), tmp_path / "model.safetensors"
    safetensors.numpy.save_file(arrays, path)
    return arrays, path


def check(model: GPT2, arrays: dict[str, Array]) -> None:
    ids = RNG.integers(0, VOCAB, (3, TIME))
    found = ag.ag_eval(model)(ids.T).numpy()  # (words, time, batch)
    np.testing.assert_allclose(found.transpose(2, 1, 0), gpt2_logits(arrays, ids), rtol=1e-4, atol=1e-4)


def test_gpt2_by_its_layout(file: tuple[dict[str, Array], Path]) -> None:
    arrays, path = file
    model = GPT2()
    assert ag.load_weights(model, path, ag.io.layouts.gpt2) is None
    check(model, arrays)


def plain(name: str) -> str | None:
    return None if name.endswith(".attn.bias") else name.removeprefix("transformer.")


def test_gpt2_in_replicas(file: tuple[dict[str, Array], Path]) -> None:
    """Words' vectors are turned there, too, and names have dots."""
    arrays, path = file
    model = GPT2()
    ag.load_weights(ag.DataParallel(model, ["cpu", "cpu:1"]), path, ag.io.layouts.gpt2)
    check(model, arrays)


def test_a_square_matrix_beside_transposed_ones_is_not_loaded_silently(file: tuple[dict[str, Array], Path]) -> None:
    """The square one is the output of the attention; all others fit only transposed."""
    arrays, path = file
    model = GPT2()
    before = model.state_dict()
    with expect_error("nothing transposed", ag.CheckpointError, "h1_attn_c_attn_W (transformer.h.0.attn.c_attn.weight "
                      "in the file) is (8, 24) instead of (24, 8); 'h1_attn_c_attn_W.T' fits", "and 4 more"):
        ag.load_weights(model, path, plain)

    def what_did_not_fit(name: str) -> str | None:
        found = plain(name)
        return f"{found}.T" if found and arrays[name].ndim == 2 and found[0] == "h" and "attn.c_proj" not in found \
            else found

    with expect_error("the square one not", ag.CheckpointError, "h1_attn_c_proj_W", "is (8, 8), which fits both ways",
                      "'h1_attn_c_proj_W.T' transposes it, 'h1_attn_c_proj_W.T.T' does not"):
        ag.load_weights(model, path, what_did_not_fit)
    with expect_error("not without strict either", ag.CheckpointError, "which fits both ways"):
        ag.load_weights(model, path, what_did_not_fit, strict=False)
    assert all(np.array_equal(x, before[name]) for name, x in model.state_dict().items())
    for turns, layout in ((".T", np.transpose), (".T.T", np.asarray)):
        ag.load_weights(model, path, lambda name, turns=turns: f"{found}{turns}" if (
            found := what_did_not_fit(name)) and found.endswith("attn.c_proj.weight") else what_did_not_fit(name))
        np.testing.assert_array_equal(model.h[1].attn.c_proj.W.numpy(),
                                      layout(arrays["transformer.h.1.attn.c_proj.weight"]))


def test_a_square_matrix_among_others_that_fit_as_they_are(tmp_path: Path) -> None:
    path, arrays = tmp_path / "m.safetensors", {
        "0.weight": RNG.random((4, 4), np.float32), "1.weight": RNG.random((3, 4), np.float32)}
    safetensors.numpy.save_file(arrays, path)
    first = ag.ag_linear(4, 4, bias=False)
    ag.load_weights(ag.ag_sequential(first, ag.ag_linear(4, 3, bias=False)), path)
    np.testing.assert_array_equal(first.W.numpy(), arrays["0.weight"])


def test_turned_parts_and_bfloat16(tmp_path: Path) -> None:
    torch_like = RNG.standard_normal((4, 12)).astype(np.float32)
    with ag.ag_dtype("bf16"):
        half = ag.ag_linear(12, 4, bias=False)
    half.W.data = torch_like
    ag.ag_save_model(half, tmp_path / "half.safetensors")
    model = ag.ag_multihead_attention(4, 2, bias=False)
    ag.load_weights(model, tmp_path / "half.safetensors", {"W": ["W_q.T", "W_k.T", "W_v.T"]}, strict=False)
    for i, w in enumerate((model.W_q, model.W_k, model.W_v)):
        np.testing.assert_array_equal(w.numpy(), half.W.numpy()[:, 4 * i : 4 * i + 4].T)
    with pytest.raises(ag.CheckpointError, match=r"behind each name of a list or none"):
        ag.load_weights(model, tmp_path / "half.safetensors", {"W": ["W_q.T", "W_k", "W_v"]})
    safetensors.numpy.save_file({"W": np.ones((2, 3, 1, 1), "f")}, tmp_path / "image.safetensors")
    with pytest.raises(ag.CheckpointError, match=r"W is \(2, 3, 1, 1\) and is to become W\.T; '\.T' is for matrices"):
        ag.load_weights(ag.ag_conv2d_layer(3, 2, 1, bias=False), tmp_path / "image.safetensors", {"W": "W.T"})


def test_shards_by_their_index(file: tuple[dict[str, Array], Path], tmp_path: Path) -> None:
    arrays, _ = file
    folder = tmp_path / "gpt2"
    folder.mkdir()
    names = sorted(arrays)
    shards = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for shard, inside in shards.items():
        safetensors.numpy.save_file({name: arrays[name] for name in inside}, folder / shard)
    index = folder / "model.safetensors.index.json"
    where = {name: shard for shard, inside in shards.items() for name in inside}
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    for path in (index, folder):
        model = GPT2()
        ag.load_weights(model, path, ag.io.layouts.gpt2)
        check(model, arrays)
    (folder / "model.safetensors").write_bytes(b"GGUF, and what comes first in transformers, too")
    with expect_error("one file before its shards", ag.CheckpointError, "model.safetensors cannot be read"):
        ag.load_weights(model, folder, ag.io.layouts.gpt2)

    def refused(*parts: str) -> None:
        with expect_error(parts[0], ag.CheckpointError, "load_weights: ", *parts):
            ag.load_weights(model, index, ag.io.layouts.gpt2)

    index.write_text(json.dumps({"weight_map": where | {"more": "model-00001-of-00002.safetensors"}}))
    refused("model-00001-of-00002.safetensors lacks more")
    (folder / "pytorch_model-00001.bin").write_bytes(b"PK\3\4" + bytes(100))
    index.write_text(json.dumps({"weight_map": {"wte.weight": "pytorch_model-00001.bin"}}))
    refused("pytorch_model-00001.bin cannot be read (it is a pickle")
    for text in ("{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": "../x.safetensors"}}', '{"weight_map": 3}'):
        index.write_text(text)
        refused("cannot be read (", "an index with a weight_map from names to files is required")
    index.write_text(json.dumps({"weight_map": where}))
    (folder / "model-00001-of-00002.safetensors").write_bytes((folder / "model-00002-of-00002.safetensors")
                                                              .read_bytes())
    index.write_text(json.dumps({"weight_map": {names[-1]: "model-00002-of-00002.safetensors",
                                                names[-2]: "model-00001-of-00002.safetensors"}}))
    refused("is in model-00002-of-00002.safetensors and another shard")
    (folder / "model-00002-of-00002.safetensors").unlink()
    refused("1 of its 2 shards are missing, such as model-00002-of-00002.safetensors", "all are required")


def test_what_is_no_safetensors_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\3\4" + bytes(100))
    (tmp_path / "q4.gguf").write_bytes(b"GGUF" + bytes(100))
    said: dict[Path | str, tuple[str, ...]] = {
        tmp_path / "pytorch_model.bin": ("it is a pickle", "save_file(torch.load('pytorch_model.bin', weights_only"),
        tmp_path / "q4.gguf": ("it is a GGUF file",),
        tmp_path: ("a folder with pytorch_model.bin, which is a pickle",),
        "openai-community/gpt2": ("there is no such file", "`hf download openai-community/gpt2 model.safetensors`")}
    for path, parts in said.items():
        with expect_error(str(path), ag.CheckpointError, "load_weights: ", "cannot be read", *parts):
            ag.load_weights(ag.ag_linear(2, 2), path)


def test_a_file_with_a_part_of_the_model(tmp_path: Path) -> None:
    model, path = GPT2(), tmp_path / "adapter.safetensors"
    new = RNG.standard_normal((D, D)).astype(np.float32)
    safetensors.numpy.save_file({"h.1.attn.c_proj.weight": new, "lora.alpha": np.ones(1, "f")}, path)
    before = model.state_dict()
    said = ag.load_weights(model, path, strict=False)
    assert said is not None and "unexpected lora.alpha" in said and "missing wte_weight" in said
    assert len(said.splitlines()) <= 6 and "and 23 more missing" in said
    np.testing.assert_array_equal(model.h[1].attn.c_proj.W.numpy(), new)
    assert sum(not np.array_equal(x, before[name]) for name, x in model.state_dict().items()) == 1
    with expect_error("nothing fits", ag.CheckpointError, "unexpected h.7.attn.c_proj.weight"):
        ag.load_weights(model, path, {"h.1.attn.c_proj.weight": "h.7.attn.c_proj.weight"}, strict=False)
    with expect_error("another shape", ag.CheckpointError, "h1_mlp_c_fc_W", "is (8, 8) instead of (32, 8)"):
        ag.load_weights(model, path, {"h.1.attn.c_proj.weight": "h.0.mlp.c_fc.weight"}, strict=False)
    sequence = ag.ag_sequential(*(ag.ag_linear(2, 2, bias=False) for _ in range(3)))
    safetensors.numpy.save_file({"0.weight": np.ones((2, 2), "f"), "2.weight": np.ones((2, 2), "f")}, path)
    with expect_error("activations may be counted", ag.CheckpointError, "unexpected 0.weight", "missing layer2_W"):
        ag.load_weights(sequence, path, strict=False)


def test_the_table_is_short_and_goes_by_names(file: tuple[dict[str, Array], Path]) -> None:
    _, path = file
    with pytest.raises(ag.CheckpointError) as error:
        ag.load_weights(GPT2(), path)
    said = str(error.value)
    assert len(said.splitlines()) <= 12 and max(map(len, said.splitlines())) < 200
    assert "missing wte_weight (the file has transformer.wte.weight of shape (11, 8))" in said
    assert "and 24 more missing, 26 more unexpected" in said


@pytest.mark.parametrize("own", [lambda x: x, lambda x: {"layer": x}, lambda x: [x]])
def test_names_with_dots(own: Callable[[Any], Any], tmp_path: Path) -> None:
    """Each place where a layer may stand has the name that PyTorch gives it."""
    class Model(ag.Layer):
        def __init__(self) -> None:
            self.h = own(ag.ag_sequential(ag.ag_linear(3, 2), ag.ag_batch_norm(2)))
            self.scale = ag.ag_param(np.ones((2, 1)))

    stem = {"Layer": "h", "dict": "h.layer", "list": "h.0"}.get(type(own(0)).__name__, "h")
    arrays = {f"{stem}.0.weight": RNG.random((2, 3)), f"{stem}.0.bias": RNG.random(2), "scale": RNG.random((2, 1)),
              f"{stem}.1.num_batches_tracked": np.array(7), **{
                  f"{stem}.1.{name}": RNG.random(2) for name in ("weight", "bias", "running_mean", "running_var")}}
    safetensors.numpy.save_file(arrays, tmp_path / "m.safetensors")
    model = Model()
    ag.load_weights(model, tmp_path / "m.safetensors")
    layers: Any = next(layer for _, layer in model.modules() if isinstance(layer, ag.nn.Sequential))
    for found, name in ((layers[0].W, "0.weight"), (layers[0].b, "0.bias"), (layers[1].gamma, "1.weight"),
                        (layers[1].beta, "1.bias"), (layers[1].running_var, "1.running_var")):
        np.testing.assert_allclose(found.numpy().ravel(), arrays[f"{stem}.{name}"].ravel(), rtol=1e-6)


def ours(theirs: str) -> str:
    """Return the name that docs/interop.md gives a tensor of torchvision's."""
    path, _, tensor = theirs.rpartition(".")
    norm = path.rpartition(".")[2].startswith("bn") or path.endswith("downsample.1")
    last = {"weight": "gamma" if norm else "W", "bias": "beta" if norm else "b"}.get(tensor, tensor)
    return f"{path}.{last}".replace(".", "_")


@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
def test_resnets_of_torchvision_need_no_names(depth: int, tmp_path: Path) -> None:
    kept = json.loads(np.load(Path(torchvision.__file__).parent / "torchvision.npz")[f"names{depth}"].tobytes())
    model, other = (ag.ag_resnet(depth, 10, width=1) for _ in range(2))
    there = other.state_dict()
    theirs = {name: there[ours(name)].reshape(there[ours(name)].shape[: len(shape)]).copy()
              for name, shape in kept["shapes"].items()}
    safetensors.numpy.save_file(theirs | {name: np.array(3) for name in kept["counted"]}, tmp_path / "resnet.st")
    ag.load_weights(model, tmp_path / "resnet.st")
    assert all(np.array_equal(x, there[name]) for name, x in model.state_dict().items())


def test_a_name_that_the_file_has_not_is_refused(tmp_path: Path) -> None:
    model, path = ag.nn.Linear(2, 2), str(tmp_path / "m.safetensors")
    safetensors.numpy.save_file({"W": np.eye(2, dtype=np.float32), "b": np.zeros((2, 1), np.float32)}, path)
    with expect_error("a slip", ag.CheckpointError, "names has 'w', which the file has not"):
        ag.load_weights(model, path, {"w": "W.T", "b": "b"})
    ag.load_weights(model, path, {"w": "W.T", "b": "b"}, strict=False)
