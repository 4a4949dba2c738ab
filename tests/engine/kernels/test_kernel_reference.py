"""Every primitive that the case table or an optimizer launches equals its numpy reference, with guard words."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers import packed
from helpers.guarded import Launch, check, guarded, reference, run
from helpers.halves import compare
from helpers.tiled import make_directly, tiled_backend
from table.cases import CASES
from table.optimizers import RULES
from table.rows import EPS, TINY, Array, loss_of, restart_generator, tensor, weights_like

import ag
from ag.engine.backend import Backend
from ag.engine.backends.cpu.backend import NumpyBackend
from ag.engine.backends.shader.manifest import manifest
from ag.engine.backends.shader.tiles import Tiles
from ag.engine.buffer import Buffer
from ag.engine.dtype import F32, I32, as_dtype
from ag.engine.kernels.packing import PACKINGS
from ag.engine.primitive import PRIMITIVES, Primitive
from ag.engine.shape import Window

SIZES = (1, 7, 1031)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 3e38, -3e38], np.float32)


class Collector(NumpyBackend):
    """A CPU device that remembers every distinct launch."""

    def __init__(self) -> None:
        super().__init__(99)
        self.launches: dict[str, Launch] = {}

    def launch(self, primitive: Primitive, *operands: Any, into: Any = None, **params: Any) -> Any:
        # Settings of optimizers are in float64 here, as other devices have none.
        arrays = [b.native.astype(np.float32) if b.native.dtype == np.float64 else b.native.copy() for b in operands]
        other = isinstance(into, Buffer) and into.dtype in (F32, I32) and into.dtype is not operands[0].dtype
        launch = Launch(primitive, arrays, params, into.dtype if other else None)
        self.launches.setdefault(str(launch), launch)
        return super().launch(primitive, *operands, into=into, **params)


def updates() -> list[Launch]:
    """The optimizers' updates in the third step of a training, with every row of their table."""
    found = []
    for row, settings in RULES.values():
        device = Collector()
        rng = np.random.default_rng(0)
        params = [tensor(rng.standard_normal(max(SIZES)).astype(np.float32), device, param=True)]
        optimizer = row.make(params, **settings)
        for _ in range(3):
            device.launches.clear()
            optimizer.step({params[0]: tensor(rng.standard_normal(max(SIZES)).astype(np.float32), device)})
        found += [x for x in device.launches.values() if x.primitive is optimizer._rule]
    return found


def caches(rng: np.random.Generator) -> list[Launch]:
    """Launches of a cache of keys and values, some of whose tokens are padding or behind its end."""
    found = []
    for times, batch in ((1, 1), (5, 3), (3, 140)):
        at, lengths = rng.integers(9, size=batch).astype(np.int32), rng.integers(times + 1, size=batch).astype(np.int32)
        found += [Launch(PRIMITIVES["cache_places"], [at, given], {"times": times, "left": left})
                  for given in (lengths, np.int32(times)) for left in (False, True)]
        places = (np.arange(times)[:, None] + at).astype(np.int32)
        places[rng.random(places.shape) < 0.3] = -1
        kept, new = ([rng.standard_normal((n, t, batch)).astype(np.float32) for n in (3, 2)] for t in (10, times))
        found += [Launch(PRIMITIVES["cache_append"], [*kept, *new, places], {}),
                  Launch(PRIMITIVES["cache_mask"], [places], {"capacity": 10}, F32)]
    return found


@cache
def launches() -> list[Launch]:
    """All distinct launches of the case table, and those that no op makes."""
    device = Collector()
    for case in (case for case in CASES if case.row.name != "ag_to_device"):  # which launches nothing
        restart_generator(device)
        given = case.on(device, case.operands(), params=True)
        with ag.with_grad_tape():
            out = case.call(*given)
            loss = loss_of(out, tensor(weights_like(out), device))
        ag.backward(loss)
    rng = np.random.default_rng(0)
    extra = []
    gradients_are = [np.float32(pair)[:, None] for pair in ((1, 0), (0.3, 0), (0.3, 2), (1, 7))]  # (factor, bad)
    for n in SIZES:
        x, y, g = rng.standard_normal((3, n)).astype(np.float32)
        extra += [Launch(PRIMITIVES["copy"], [x], {})]
        extra += [launch.cut(n, factor=factor, bad=bad) for launch in updates() for factor, bad in gradients_are]
        chain = (("mul", 0, 1, 0.0), ("scale", 4, 4, 2.0), ("add", 5, 2, 0.0), ("tanh", 6, 6, 0.0), ("sub", 7, 3, 0.0))
        extra += [Launch(PRIMITIVES["fused"], [x, y, g, x[:1]], {"chain": chain}),
                  Launch(PRIMITIVES["fused_pair"], [x, y, g, x[:1]], {"chain": chain, "kept": 5})]
        extra += [Launch(PRIMITIVES["nonfinite"], [values, factor], {"chunk": chunk})
                  for values in (x, np.resize(SPECIAL, n)) for factor, _ in gradients_are for chunk in (1, 5, 4096)]
        extra += [Launch(PRIMITIVES["square_sums"], [x], {"chunk": chunk}) for chunk in (1, 5, 4096)]
    extra += [Launch(PRIMITIVES["clip_factor"], [*np.array(squares, np.float32)], {"max_norm": 2.0})
              for squares in ((0.0, 0.0), (3.0, 2.0), (4.0, 4.0), (400.0, 3.0), (np.inf, 9.0), (np.inf, 2e26))]
    rows, columns = rng.integers(0, 5, 7).astype(np.int32), rng.integers(-3, 3, 7).astype(np.int32)
    rows[3], columns[4:6] = 2**31 - 1, (3, -4)  # which are no place
    extra += [Launch(PRIMITIVES["flat_ids"], [rows, columns], {"length": 3})]
    means, variances = rng.standard_normal((2, 3, 4)).astype(np.float32)
    extra += [Launch(PRIMITIVES["joined_statistics"], [means, variances**2], {"length": 1000, "chunk": 256})]
    for bad in np.float32([0, 1, 300]):
        for scaling in ([4, 0.25, 0, 0], [4, 0.25, 2, 5], [16, 0.0625, 2, 0], [0.0625, 16, 1, 7]):
            extra += [Launch(PRIMITIVES["scale_update"], [np.float32(scaling), np.array(bad)],
                             {"interval": 3, "largest": 16.0})]
    a, b, c = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 3), (3, 6), (5, 1)))
    linear = {"ta": False, "tb": False, "chain": (("add", 0, 1, 0.0), ("tanh", 4, 4, 0.0), ("mul", 5, 2, 0.0))}
    extra += [Launch(PRIMITIVES["matmul_chain"], [a, b, c, b[:1], c[:1]], linear),
              Launch(PRIMITIVES["matmul_chain_pair"], [a, b, c, b[:1], c[:1]], {**linear, "kept": 4}),
              Launch(PRIMITIVES["matmul_sums"], [a, b], {"ta": False, "tb": False}),
              Launch(PRIMITIVES["matmul_sums"], [a, b.T.copy()], {"ta": False, "tb": True})]
    image, weights = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 3, 4), (2, 2, 1, 1)))
    others = [image.reshape(2, -1), image[:, 0, 0, :1], image[:1, 0, 0, :1]]
    pixels = {"window": Window((1, 1)), "groups": 1}
    steps = (("mul", 0, 1, 0.0), ("add", 4, 2, 0.0), ("sub", 5, 3, 0.0))
    extra += [Launch(PRIMITIVES["conv2d_chain"], [image, weights, *others], {**pixels, "chain": steps}),
              Launch(PRIMITIVES["conv2d_input_grad_chain"], [weights, image, *others],
                     {**pixels, "image": (3, 3), "chain": steps})]
    for packing in PACKINGS:
        extra += [packed.product(rng, name, packing, 40, 70, 6, ta)
                  for name in ("packed_matmul", "packed_matmul_pieces") for ta in (False, True)]
        extra += [packed.lookup(rng, packing, 5, 40, 9)]
    extra += [packed.product(rng, name, "q8_0", 9, 32, 5, False) for name in (
        "packed_matmul_chain", "packed_matmul_chain_pair")]
    return [*device.launches.values(), *extra, *caches(rng)]


# lavapipe compiles nine kinds of attention's gradient for half a minute; test_attention.py runs the usual two.
LONG = {"attention_grad": pytest.mark.slow_on("lavapipe")}


WINDOWS_AND_HEADS = "attention", "masked_attention", "conv2d"  # whose kernels drivers compile for a minute


@pytest.mark.parametrize("heavy", [False, pytest.param(True, marks=pytest.mark.slow_on("lavapipe", "swiftshader"))])
def test_results_in_16_bits_are_those_of_float32_rounded_once(backend: Backend, heavy: bool) -> None:
    elsewhere = {"widen", "narrow", "reconcile", "adam_update", "sgd_update"}  # see test_halves.py
    for name in sorted(backend.halves.keys() - elsewhere):
        if name.startswith(WINDOWS_AND_HEADS) != heavy:
            continue
        found = [x for x in launches() if x.primitive.name == name and all(
            a.dtype in (np.float32, np.int32, np.uint32) for a in x.operands)]
        for launch in found[:12]:
            compare(backend, launch, backend.halves[name])


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG.get(name, ())) for name in sorted(
    n for n, p in PRIMITIVES.items() if "bfloat" not in p.params)])
def test_equals_the_reference(backend: Backend, name: str) -> None:
    found = [launch for launch in launches() if launch.primitive.name == name]
    assert found, f"no case launches {name}: add a row to cases.py"
    for launch in found:
        check(backend, launch)


@pytest.mark.slow
def test_convolutions_in_tiles_equal_the_reference(vulkan: str) -> None:
    """Graphics cards make most of them so, and a software device makes none: see test_conv_tiles.py, too."""
    with tiled_backend(vulkan, "") as backend:
        make_directly(backend, 0)
        for launch in launches():
            if launch.primitive.name.removesuffix("_chain") in ("conv2d", "conv2d_input_grad"):
                check(backend, launch)
                compare(backend, launch, backend.halves[launch.primitive.name])


@pytest.mark.sync
def test_one_launch_of_every_kernel(backend: Backend) -> None:
    for launch in {launch.primitive.name: launch for launch in launches()}.values():
        check(backend, launch)


@pytest.mark.parametrize("name", sorted(n for n, p in PRIMITIVES.items() if p.in_place and "bfloat" not in p.params))
def test_output_may_be_an_input(backend: Backend, name: str) -> None:
    """A program lets results take the memory of operands that end with the launch."""
    primitive = PRIMITIVES[name]
    for launch in (launch for launch in launches() if launch.primitive.name == name):
        for output, i in primitive.in_place:
            buffers = [backend.alloc(y.shape, as_dtype(y.dtype, "tests")) for y in launch.operands]
            for y, b in zip(launch.operands, buffers, strict=True):
                backend.upload(y, b)
            operand = buffers[i - primitive.outputs]
            with np.errstate(all="ignore"):
                made = backend.launch(primitive, *buffers, **launch.params)
                fresh = made if primitive.outputs > 1 else (made,)
                if (fresh[output].shape, fresh[output].dtype) != (operand.shape, operand.dtype):
                    continue
                into = [operand if k == output else backend.alloc(b.shape, b.dtype) for k, b in enumerate(fresh)]
                backend.launch(primitive, *buffers, into=tuple(into) if len(into) > 1 else into[0], **launch.params)
            for got, want in zip(into, fresh, strict=True):
                np.testing.assert_array_equal(backend.download(got), backend.download(want), str(launch))


@pytest.mark.parametrize("name", sorted(n for n, p in PRIMITIVES.items() if p.cheap and "bfloat" not in p.params))
def test_what_is_cheap_may_be_made_twice(backend: Backend, name: str) -> None:
    """A program may launch it again to save memory: its operands stay what they are, and so do the bits."""
    for launch in [launch for launch in launches() if launch.primitive.name == name][-8:]:
        first, second = run(backend, launch), run(backend, launch)
        for got, want in zip(first, second, strict=True):
            assert got.tobytes() == want.tobytes(), str(launch)
        for got, given in zip(first[launch.primitive.outputs :], launch.operands, strict=False):
            assert got.tobytes() == given.tobytes(), str(launch)


PAIRS = [x.reshape(-1).copy() for x in np.meshgrid(SPECIAL, SPECIAL)]
COLUMNS = np.array([[1e30, 0, np.nan, np.inf, -np.inf], [-1e30, 0, 1, 2, -np.inf], [0, 0, 3, 4, -np.inf]], np.float32)
# By the operands and the error relative to eps: primitives and their parameters.
SPECIALS: list[tuple[list[Array], int, list[tuple[str, dict[str, Any]]]]] = [
    ([SPECIAL], 32, [
        ("relu", {}), ("clamp", {"lo": -0.5, "hi": 0.5}), ("copy", {}), ("scale", {"factor": 2.0}), ("exp", {}),
        ("log", {}), ("sqrt", {}), ("abs", {}), ("sigmoid", {}), ("tanh", {}), ("silu", {}), ("gelu", {}),
        ("gelu_tanh", {}), ("leaky_relu", {"slope": 0.5}), *(("pow", {"p": p}) for p in (2.0, -1.0, 0.5))]),
    ([SPECIAL[:, None], SPECIAL[None]], 32, [(name, {}) for name in ("add", "sub", "mul", "div", "equal")]),
    (PAIRS, 0, [("relu_grad", {}), ("clamp_grad", {"lo": -0.5, "hi": 0.5}), ("abs_grad", {})]),
    (PAIRS, 4, [("sigmoid_grad", {}), ("tanh_grad", {}),
                *(("pow_grad", {"p": p}) for p in (0.0, 1.0, 2.0, 3.0, -1.0, 1.5))]),
    ([COLUMNS], 32, [("softmax", {"axis": 0}), ("max", {"axis": 0, "chunk": 3}), ("log_softmax", {"axis": 0})]),
    ([COLUMNS, np.full(COLUMNS.shape, 1 / 3, np.float32)], 32, [("softmax_cross_entropy", {"factor": 0.5})]),
    ([COLUMNS, np.array([0, 1, 2, 0, 1], np.int32)], 32, [("softmax_cross_entropy_ids", {"factor": 0.5})]),
]


def test_special_numbers(backend: Backend) -> None:
    for operands, eps, found in SPECIALS:
        for launch in (Launch(PRIMITIVES[name], operands, params) for name, params in found):
            for got, want in zip(run(backend, launch), reference(launch), strict=True):
                np.testing.assert_allclose(got, want, eps * EPS["f32"], TINY if eps else 0, err_msg=str(launch))


def test_an_overwritten_guard_word_is_found(backend: Backend) -> None:
    device = NumpyBackend(guard=64) if isinstance(backend, NumpyBackend) else backend
    buffer = device.alloc((3,), F32)
    end = buffer.address + buffer.nbytes
    before = device._read_bytes(end, 4)
    device._write_bytes(end, b"oops")
    with pytest.raises(ag.ArenaError, match=r"memory after <Buffer \(3,\) f32 .* was overwritten"):
        device.check_guards()
    device._write_bytes(end, before)


# ---------------------------------------------------------------------------------------------- turns

TAKES_TURNS = sorted(name for name, entry in manifest()["kernels"].items() if name in PRIMITIVES
                     and any(constant["name"] == "turns" for constant in entry["spec"]))


class Turns(Tiles):
    """A rule by which every invocation takes four elements, however few there are."""

    def turns(self, n: int) -> int:
        return 4


def same(backend: Any, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    want = run(backend, launch)
    usual = backend._kernels.tiles
    with monkeypatch.context() as patch:
        patch.setattr(backend._kernels, "tiles", Turns(usual.units, usual.rates, usual.forced, usual.fixed,
                                                       usual.direct_rows))
        for got, wanted in zip(run(backend, launch), want, strict=True):
            np.testing.assert_array_equal(got, wanted, str(launch))


@pytest.mark.vulkan
@pytest.mark.parametrize("name", TAKES_TURNS)
def test_turns_have_the_same_bits(name: str, vulkan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for launch in [launch for launch in launches() if launch.primitive.name == name][-8:]:
        same(guarded(vulkan), launch, monkeypatch)


@pytest.mark.vulkan
def test_turns_with_any_number_of_elements(vulkan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in (1, 127, 128, 129, 511, 512, 513, 100_000):
        x = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
        for launch in (Launch(PRIMITIVES["copy"], [x[0]], {}), Launch(PRIMITIVES["add"], [x, x[:, :1]], {})):
            same(guarded(vulkan), launch, monkeypatch)


def test_a_card_takes_turns_where_there_are_many_elements() -> None:
    card = Tiles(132, ())
    assert [card.turns(n) for n in (1, 100_000, 200_000, 300_000, 1 << 20, 1 << 26)] == [1, 1, 2, 4, 8, 16]
    assert [Tiles(1, ()).turns(n) for n in (1, 8191, 8192, 1 << 14, 1 << 26)] == [1, 1, 2, 4, 16]
