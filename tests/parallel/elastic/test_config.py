"""Configuration files, worlds, and the training loop over them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.properties import examples
from hypothesis import given
from hypothesis import strategies as st

import ag
from ag.parallel.elastic.world import _share


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, "utf-8")
    return path


def test_the_keys_of_the_original(tmp_path: Path) -> None:
    config = ag.load_config(written(tmp_path, """
distributed:
  strategy: data_parallel  # or model_parallel
  devices:
    - cpu
    - cpu:1
    - cpu:1
  backend: local
  gradient_sync: all_reduce
"""))
    assert (config.strategy, config.devices) == ("data_parallel", ("cpu", "cpu:1", "cpu:1"))
    assert config.world().devices == ("cpu", "cpu:1", "cpu:1")


def test_what_is_not_said_has_defaults(tmp_path: Path) -> None:
    config = ag.load_config(written(tmp_path, "distributed: {strategy: pipeline}"))
    assert (config.devices, config.backend, config.gradient_sync) == (None, "local", "all_reduce")
    assert config.world().devices == ("cpu",)  # no card is here


def test_checkpoints(tmp_path: Path) -> None:
    config = ag.load_config(written(tmp_path, """
distributed:
  devices: [cpu, cpu:1]
  checkpoint: job.safetensors
  checkpoint_every: 20
  max_restarts: 0
"""))
    assert config.checkpoints() == {"checkpoint": "job.safetensors", "checkpoint_every": 20, "max_restarts": 0}
    plain = ag.load_config(written(tmp_path, "distributed: {strategy: pipeline}"))
    assert plain.checkpoints() == {"checkpoint": None, "checkpoint_every": None, "max_restarts": 3}
    layer, world = ag.ag_linear(4, 2), config.world()
    options = {**config.checkpoints(), "checkpoint": tmp_path / "job.safetensors"}
    ag.train_distributed(config.parallel(layer, world), [(ag.ag_tensor(X), ag.ag_tensor(Y))], world, ag.ag_mse_loss,
                         epochs=2, **options)
    assert ag.ag_load_checkpoint(tmp_path / "job.safetensors", layer).step == 2


def test_every_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, """distributed:
  stratagy: data_parallel
  strategy: magic
  devices:
    - cpu
    - cuda:0
    - [cpu]
  backend: nccl
  gradient_sync: [a, b]
  backend: local
  checkpoint: []
  checkpoint_every: 0
  max_restarts: many
training: {}
""")
    with pytest.raises(ValueError) as caught:
        ag.load_config(path)
    text = str(caught.value)
    for fault in ("line 2: unknown key 'stratagy' in distributed; known are strategy, devices, backend, gradient_sync, "
                  "checkpoint, checkpoint_every, max_restarts, timeout, min_ranks",
                  "line 3: strategy is 'magic'; it must be data_parallel or model_parallel or pipeline",
                  "line 6: device 'cuda:0': ag_device: unknown device 'cuda:0'", "Write 'vulkan:0' instead of 'cuda:0'",
                  "line 7: device a sequence",
                  "line 8: backend is 'nccl'; it must be local or mpi. Write 'mpi' instead of 'nccl'",
                  "line 9: gradient_sync is a sequence; it must be all_reduce", "line 10: backend is given twice",
                  "line 11: checkpoint is a sequence; it must be the name of a file",
                  "line 12: checkpoint_every is '0'; it must be a whole number of at least 1",
                  "line 13: max_restarts is 'many'; it must be a whole number of at least 0",
                  "line 14: unknown key 'training' in the file; known are distributed"):
        assert fault in text, text
    assert text.count("line ") == 11


@pytest.mark.parametrize(("text", "fault"), [
    ("", "there is no section distributed"),
    ("distributed:\n", "line 1: distributed must be keys with values"),
    ("- a\n", "line 1: the file must be keys with values"),
    ("distributed: {devices: []}", "line 1: devices is a sequence; it must be a list of at least one device"),
    ("distributed: {devices: cpu}", "devices is 'cpu'; it must be a list"),
    ("distributed: {checkpoint_every: 5}", "line 1: checkpoint_every needs checkpoint"),
    ("distributed: [", "is not YAML: line 1: "),
    ("distributed:\n  a: *b", "is not YAML: line 2: found undefined alias"),
    ("distributed:\n  strategy: \x00", "is not YAML: line 2: special characters are not allowed"),
    ('distributed: {checkpoint: "a\\0b"}', "line 1: checkpoint is 'a\\x00b'; it must be the name of a file"),
    ("[" * 1000 + "]" * 1000, "too many lists or mappings inside each other"),
    ("distributed: " + "{a: " * 1000 + "}" * 1000, "too many lists or mappings inside each other"),
    ("distributed: {checkpoint: 2024}", "checkpoint is '2024'; it must be the name of a file, in quotes"),
    ("distributed: {checkpoint: true}", "checkpoint is 'true'; it must be the name of a file"),
    ("distributed: {checkpoint: a, checkpoint_every: 010}", "checkpoint_every is '010'"),
    (f"distributed: {{checkpoint: a, checkpoint_every: {'9' * 5000}}}", "checkpoint_every is '999"),
    ("distributed: {checkpoint: null, checkpoint_every: 5}", "checkpoint_every needs checkpoint"),
    ("distributed: {timeout: -1}", "line 1: timeout is '-1'; it must be a number of seconds above 0"),
    ("distributed: {timeout: .inf}", "timeout is '.inf'; it must be a number"),
    ("distributed: {min_ranks: 0}", "min_ranks is '0'; it must be a whole number of at least 1"),
    ("distributed: {backend: gloo}", "Write 'mpi' instead of 'gloo'"),
    ("distributed: {max_restarts: null}", "max_restarts is 'null'"),
    ("distributed: {strategy: !!python/object/apply:os.system ['true']}", "strategy is a sequence"),
])
def test_files_that_are_wrong(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=r"load_config: .*config\.yaml") as caught:
        ag.load_config(written(tmp_path, text))
    assert fault in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"distributed: \xff")
    with pytest.raises(ValueError, match=r"load_config: .*config\.yaml is not YAML: line 1: the byte 0xff is no"):
        ag.load_config(tmp_path / "config.yaml")


KEYS = st.sampled_from(["strategy", "devices", "backend", "gradient_sync", "checkpoint", "checkpoint_every",
                        "max_restarts", "timeout", "min_ranks", "<<", "x", "? a"])
VALUES = st.sampled_from(["data_parallel", "pipeline", "local", "mpi", "all_reduce", "[cpu]", "[cpu, 'cpu:1']", "cpu",
                          "[cpu:x]", "[a, [b]]", "1", "2", "0", "-1", "1.5", "1e9999", "0x1f", ".nan", "~", "yes", "'",
                          "{a: b}", "*a", "&a 3", "&a [*a]", "!!int 3", "!!python/name:os.system", "|", "é", '"a\\0"'])


@examples
@given(lines=st.lists(st.one_of(st.builds("  {}: {}".format, KEYS, VALUES), st.text(max_size=12)), max_size=6),
       head=st.sampled_from(["distributed:", "distributed: &d", "", "- distributed:", "distributed: !!map"]),
       rest=st.binary(max_size=6))
def test_any_file_is_read_or_its_line_named(tmp_path: Path, lines: list[str], head: str, rest: bytes) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes("\n".join([head, *lines]).encode("utf-8", "surrogatepass") + rest)
    try:
        config = ag.load_config(path)
    except ValueError as error:
        assert type(error) is ValueError and re.match(r"load_config: .*config\.yaml(:| is not YAML:) line \d+: ",
                                                      str(error)), error
    else:
        if config.min_ranks == 1 and config.devices:
            assert config.world().devices == config.devices


@pytest.mark.parametrize("nothing", ["null", "~", ""])
def test_null_is_nothing(tmp_path: Path, nothing: str) -> None:
    text = f"distributed:\n  devices: {nothing}\n  checkpoint: {nothing}\n  checkpoint_every: {nothing}\n"
    assert ag.load_config(written(tmp_path, text)) == type(ag.load_config(written(tmp_path, text)))()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ag.load_config(tmp_path / "nothing.yaml")


# ---------------------------------------------------------------------------------------------- worlds


def test_a_world_of_devices() -> None:
    world = ag.DistributedWorld.init(devices=["cpu", "cpu:1"])
    assert (world.rank, world.size) == (0, 1)
    world.barrier()
    assert repr(world) == "DistributedWorld(rank=0, size=1, devices=['cpu', 'cpu:1'])"


def test_a_program_that_was_started_alone_is_a_world_of_one() -> None:
    """It does not even load MPI."""
    code = ("import ag, sys; w = ag.DistributedWorld.init('mpi', timeout=5); "
            "print(w.rank, w.size, w.local_rank, w.local_size, w.comm.size, any('mpi4py' in m for m in sys.modules))")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PMI_"))}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=clean)
    assert found.stdout.split() == ["0", "1", "0", "1", "1", "False"]


def test_ranks_of_a_host_share_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is given twice, and who gets none computes on the CPU."""
    names = [f"vulkan:{i}" for i in range(3)]
    monkeypatch.setattr("ag.parallel.elastic.world.cards", lambda: names)
    monkeypatch.setattr("ag.parallel.elastic.world.default_devices", lambda: names)

    def share(rank: int, hosts: list[str], count: int | None = None) -> list[str]:
        return _share(SimpleNamespace(rank=rank, hosts=tuple(hosts)), count)  # type: ignore[arg-type]

    assert share(0, ["a"]) == ["vulkan:0", "vulkan:1", "vulkan:2"]
    assert [share(i, ["a", "b", "a"]) for i in range(3)] == [["vulkan:0", "vulkan:1"],
                                                              ["vulkan:0", "vulkan:1", "vulkan:2"], ["vulkan:2"]]
    assert [share(i, ["a"] * 5) for i in range(5)] == [["vulkan:0"], ["vulkan:1"], ["vulkan:2"], ["cpu"], ["cpu"]]
    assert [share(i, ["a"] * 2, 1) for i in range(2)] == [["vulkan:0"], ["vulkan:2"]]
    with pytest.raises(ag.DeviceError, match="num_devices is 2 and there are 1 Vulkan devices for this rank"):
        share(1, ["a"] * 2, 2)


def test_a_configuration_of_processes(tmp_path: Path) -> None:
    config = ag.load_config(written(tmp_path, "distributed: {backend: mpi, timeout: 12.5, devices: [cpu]}"))
    assert (config.backend, config.timeout, config.min_ranks) == ("mpi", 12.5, 1)
    assert (config.world().size, config.world().min_ranks) == (1, 1)


@pytest.mark.vulkan
def test_a_world_of_so_many_devices(lavapipe: str, swiftshader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AG_SOFTWARE", "1")
    with ag.ag_device("auto"):
        assert set(ag.DistributedWorld.init(num_devices=2).devices) == {lavapipe, swiftshader}
    monkeypatch.delenv("AG_SOFTWARE")
    with ag.ag_device("auto"):
        assert ag.DistributedWorld.init().devices == ("cpu",)
    with ag.ag_device(swiftshader):
        assert ag.DistributedWorld.init().devices == (swiftshader,)


@pytest.mark.parametrize(("wrong", "error", "text"), [
    ({"backend": "nccl"}, ValueError, "backend is 'nccl'; it must be 'local'.*Write 'mpi' instead of 'nccl'"),
    ({"devices": ["cuda:1"]}, ag.DeviceError, "Write 'vulkan:1' instead of 'cuda:1'"),
    ({"timeout": 0}, ValueError, "timeout is 0; a positive number"),
    ({"min_ranks": 2}, ag.CommError, "there are 1 ranks, and min_ranks is 2"),
    ({"devices": []}, ValueError, "devices is empty"),
    ({"devices": ["cpu"], "num_devices": 1}, ValueError, "both given"),
    ({"num_devices": 1000}, ag.DeviceError, "num_devices is 1000 and there are"),
])
def test_worlds_that_cannot_be(wrong: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ag.DistributedWorld.init(**wrong)


# ---------------------------------------------------------------------------------------------- training

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 64)).astype(np.float32)
Y = X[:2] - X[2:]


@pytest.mark.parametrize(("strategy", "kind"), [
    ("data_parallel", ag.DataParallel), ("model_parallel", ag.ModelParallel), ("pipeline", ag.Pipeline)])
def test_every_strategy_trains_a_model_of_its_kind(strategy: str, kind: type, tmp_path: Path) -> None:
    config = ag.load_config(written(tmp_path, f"distributed: {{strategy: {strategy}, devices: [cpu, 'cpu:1']}}"))
    parts = [ag.ag_linear(4, 8, activation="tanh"), ag.ag_linear(8, 2)]
    world = config.world()
    model = config.parallel(ag.ag_sequential(parts) if strategy == "data_parallel" else parts, world)
    assert isinstance(model, kind)
    losses = ag.train_distributed(model, ag.ag_dataloader(X, Y, batch_size=24, seed=1), world, ag.ag_mse_loss,
                                  ag.optimizer_adam(model.parameters(), lr=0.02), epochs=5)
    assert len(losses) == 15 and losses[-1] < losses[0] / 2


def test_what_cannot_be_trained() -> None:
    world = ag.DistributedWorld.init(devices=["cpu"])
    with pytest.raises(ValueError, match="data has no batch"):
        ag.train_distributed(ag.ag_linear(4, 2), [], world, ag.ag_mse_loss)
    with pytest.raises(ValueError, match="a Pipeline needs loss_fn"):
        ag.train_distributed(ag.Pipeline([ag.ag_linear(4, 2)]), [], world)
    plain = ag.ag_linear(4, 2)
    for model in (plain, ag.DataParallel(plain, world.devices), ag.ModelParallel([plain], world.devices),
                  ag.DataParallel(ag.ModelParallel([plain], world.devices), world.devices)):
        with pytest.raises(ValueError, match=f"loss_fn was not given, and {type(model).__name__} takes no targets"):
            ag.train_distributed(model, [(ag.ag_tensor(X), ag.ag_tensor(Y))], world)
