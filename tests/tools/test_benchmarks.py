"""Every benchmark runs, at its smallest size and without PyTorch, and writes what it says it writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from ag.engine.backends.cpu.library import library
from ag.parallel.comm.mpi_settings import find_mpiexec

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
JAX_PYTHON = os.environ.get("AG_TEST_JAX_PYTHON", sys.executable)
SCRIPTS = sorted(p.name for p in BENCHMARKS.glob("bench_*.py"))


def run(script: str, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The result file of a benchmark, and its output as "printed"."""
    out = tmp_path / "result.json"
    done = subprocess.run([sys.executable, str(BENCHMARKS / script), "--quick", "--out", str(out), *arguments],
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(out.read_text("utf-8"))
    where = found["machine"]
    assert where["processor"] and where["cores"] and where["python"] and where["numpy"] and "torch" not in where
    assert found["device"] in where["device"] and {"commit", "changed"} <= where.keys()
    assert found["results"] and "torch" not in done.stdout
    return {**found, "printed": done.stdout}


@pytest.mark.slow
def test_steps(tmp_path: Path) -> None:
    found = run("bench_step.py", tmp_path, "--workloads", "W1b,W4")
    rows = {(r["workload"], r["peer"]): r for r in found["results"]}
    assert rows.keys() == {("W1b", "ag eager"), ("W1b", "ag captured"), ("W1b", "ag numpy"), ("W1b", "ag dp_train"),
                           ("W4", "ag eager"), ("W4", "ag captured"), ("W4", "ag numpy")}
    assert all(r["same_work"] and r["us_per_step"] > 0 and len(r["rounds"]) == 1 for r in rows.values())
    assert found["printed"].count("| ag captured |") == 2
    assert found["printed"].startswith("JAX takes no part") and "jax" not in found["machine"]


@pytest.mark.slow
def test_steps_beside_jax(tmp_path: Path) -> None:
    if subprocess.run([JAX_PYTHON, "-c", "import jax"], capture_output=True, check=False).returncode:
        pytest.skip("JAX is not installed; AG_TEST_JAX_PYTHON may name an interpreter that has it")
    found = run("bench_step.py", tmp_path, "--jax-python", JAX_PYTHON)
    rows = {(r["workload"], r["peer"]): r for r in found["results"]}
    for workload in ("W1", "W1b", "W2", "W3", "W4"):
        jax, captured = rows[workload, "jax jit"], rows[workload, "ag captured"]
        assert jax["same_work"] and captured["same_work"] and jax["x_jax_jit"] == 1
        assert captured["loss_last"] == pytest.approx(jax["loss_last"], rel=2e-3)
        assert captured["x_jax_jit"] == jax["us_per_step"] / captured["us_per_step"] > 0
    assert found["printed"].count("| speed against jax jit |") == 5 and found["machine"]["jax"]


def test_a_python_without_jax_is_refused(tmp_path: Path) -> None:
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\necho no module >&2\nexit 1\n")
    without.chmod(0o755)
    done = subprocess.run([sys.executable, str(BENCHMARKS / "bench_step.py"), "--quick", "--jax-python", str(without)],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr == f"--jax-python {without}: it has no JAX.\nno module\n\n"


def operations(tmp_path: Path, device: str) -> dict[str, Any]:
    found = run("bench_ops.py", tmp_path, "--device", device)
    assert all(value > 0 for value in found["roofs"].values())
    kinds = {r["op"] for r in found["results"]}
    stepped = {"attention masked", "where", "bce", "gather", "einsum", "conv transposed"}
    assert kinds == stepped | {f"{name} step" for name in stepped} | {
        "matmul", "matmul dW", "matmul dX", "conv", "conv dgrad", "conv wgrad", "add",
        "sum", "AdamW", "softmax", "softmax-CE", "layer norm", "layer norm backward", "RMS norm", "RMS norm backward",
        "attention", "attention backward"}
    for row in found["results"]:
        assert row["us"] > 0 and row["launches"] >= 1 and row["roof_percent"] > 0 and row["torch_us"] is None, row
        assert row["gflops"] * row["us"] / 1e3 == pytest.approx(row["intensity"] * row["gbytes"] * row["us"] / 1e3)
    return found


@pytest.mark.slow
def test_operations_and_their_plot(tmp_path: Path) -> None:
    operations(tmp_path, "cpu")
    pytest.importorskip("matplotlib", reason="matplotlib draws the roofline, and is not installed")
    subprocess.run([sys.executable, str(BENCHMARKS / "roofline.py"), str(tmp_path / "result.json")], check=True)
    assert (tmp_path / "result.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.vulkan
def test_operations_on_vulkan(tmp_path: Path, lavapipe: str) -> None:
    operations(tmp_path, lavapipe)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "lavapipe"], indirect=True)
def test_transfers(tmp_path: Path, device: str) -> None:
    rows = run("bench_transfer.py", tmp_path, "--device", device)["results"]
    wanted = {"upload", "download", "launch and wait", "replay and wait", "replay, host only"}
    assert wanted <= {r["what"] for r in rows}
    assert all(r["us"] > 0 for r in rows)


@pytest.mark.slow
@pytest.mark.vulkan
def test_the_hosts_part(tmp_path: Path, lavapipe: str) -> None:
    found = run("host_time.py", tmp_path, "--device", lavapipe)
    rows = [json.loads(line) for line in (tmp_path / "result.jsonl").read_text("utf-8").splitlines()]
    assert [row["workload"] for row in rows] == [r["workload"] for r in found["results"]] == ["W1", "W2", "W3", "W4"]
    for row in rows:
        assert row["submits"] == 1 and row["launches"] > 10, row
        assert min(row["captured_us"], row["captured_read_us"], row["eager_us"], row["launch_least_us"]) > 0, row


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from Linux's /proc")
def test_overheads(tmp_path: Path) -> None:
    rows = {r["what"]: r for r in run("overhead.py", tmp_path)["results"]}
    assert all(r["rounds"] == [r["median"]] and r["median"] > 0 for r in rows.values()), rows
    assert {r["unit"] for r in rows.values()} == {"us", "ms", "s", "MB"}
    assert {"eager add", "eager step of four ops", "compile 4 layers", "first captured call, 4 layers",
            "4 replicas, a sample each", "W3 captured, peak", "W3 captured, recompute, afterwards",
            "10 M parameters, the pass"} <= rows.keys()
    assert rows["compile 4 layers"]["median"] < rows["first captured call, 4 layers"]["median"] < 60
    assert rows["W3 captured, peak"]["median"] >= rows["W3 captured, afterwards"]["median"] > 20


@pytest.mark.slow
@pytest.mark.parametrize(("script", "rows", "numbers"), [
    pytest.param("products.py", 3, ("ag_us", "blas_us", "x_blas"), marks=pytest.mark.skipif(
        library() is None, reason="no kernels in C: not built, or AG_CPU is numpy")),
    ("bench_parallel.py", 5, ("samples_per_s", "speedup")), ("bench_comm.py", 1, ("ag_ms", "mpi_ms", "ratio")),
    ("bench_import.py", 4, ("ag_ms", "numpy_ms", "ratio", "modules", "step_ms")),
    ("bench_examples.py", 2, ("us_ag",)), ("bench_packed.py", 18, ("us", "x_f32"))])
def test_every_row_has_its_numbers(script: str, rows: int, numbers: tuple[str, ...], tmp_path: Path) -> None:
    if script == "bench_comm.py" and (find_spec("mpi4py") is None or find_mpiexec() is None):
        pytest.skip("mpi4py or mpiexec is missing")
    found = run(script, tmp_path)["results"]
    assert len(found) == rows and all(row[name] > 0 for row in found for name in numbers)


@pytest.mark.slow
def test_another_checkout(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.symlink_to(ROOT)
    rows = run("against.py", tmp_path, str(other), "--workloads", "W1")["results"]
    assert [(r["workload"], r["variant"]) for r in rows] == [("W1", "eager"), ("W1", "captured")]
    assert all(r["ratios"] == [r["us_here"] / r["us_there"]] == [r["ratio"]] for r in rows)


def test_every_benchmark_is_run_by_make_and_described() -> None:
    makefile, readme = (ROOT / "Makefile").read_text("utf-8"), (BENCHMARKS / "README.md").read_text("utf-8")
    made = re.search(r"for name in (.*); do .*bench_", makefile)
    assert made and sorted(f"bench_{name}.py" for name in made[1].split()) == SCRIPTS
    undescribed = [p.name for p in BENCHMARKS.iterdir() if p.is_file() and f"`{p.name}`" not in readme]
    assert undescribed == ["README.md"]


def test_what_gpu_check_runs_is_there() -> None:
    script = (BENCHMARKS / "gpu_check.sh").read_text("utf-8")
    named = re.findall(r"(?:tests|benchmarks)/[\w/]+\.py", script)
    assert len(named) > 10 and all((ROOT / name).is_file() for name in named)
    assert {f"bench_{name}.py" for name in re.findall(r"^ +bench \d+ (\w+)", script, re.M)} <= set(SCRIPTS)
    _, kernels, operations, judge, steps = re.split(r'"\$call" = \w+ \]; then|^else', script, flags=re.M)
    limits = [int(seconds) for seconds in re.findall(r"^ +(?:part|bench) (\d+) ", judge, re.M)]
    assert limits and sum(limits) + 20 <= 5 * 60
    for call in (kernels.replace("tests 120 ", ""), operations, steps):  # which is the quick one
        limits = [int(seconds) for seconds in re.findall(r"^ +(?:part|bench|tests) (\d+) ", call, re.M)]
        assert limits and sum(limits) + 20 < 9 * 60
    subprocess.run(["bash", "-n", str(BENCHMARKS / "gpu_check.sh")], check=True)


def verdict_on(folder: Path, **rows: list[dict[str, Any]]) -> list[list[str]]:
    """The lines of the verdict on rows, the last of which was cut off as it was written."""
    for name, found in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found) + '{"peer": "ag", "ca')
    done = subprocess.run([sys.executable, str(BENCHMARKS / "verdict.py"), str(folder)], capture_output=True, text=True,
                          check=True, timeout=60)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[3:]]


def test_the_verdict_is_on_what_was_measured(tmp_path: Path) -> None:
    assert {line[3] for line in verdict_on(tmp_path)} == {"not run", "not measured"}
    roofs = {"peer": "ag", "case": "roofs", "sizes": "large", "flops": 60e12, "bytes": 3e12, "empty": 0.0}

    def product(size: int, us: float, precision: str = "", *kernels: str) -> dict[str, Any]:
        case = f"matmul {precision} {size}x{size}x{size}".replace("  ", " ")
        return {"peer": "ag", "case": case, "us": us, "launches": 1, "kernels": kernels}

    def added(elements: int, us: float) -> dict[str, Any]:
        return {"peer": "ag", "case": f"add {elements}", "us": us, "launches": 1}

    def step(workload: str, peer: str, us: float) -> dict[str, Any]:
        return {"peer": peer, "workload": workload, "us_per_step": us}

    lines = {line[0]: line[1:] for line in verdict_on(
        tmp_path, kernels=[{"tests": 2}, {"test": "a", "outcome": "passed"}, {"test": "b", "outcome": "failed"}],
        ops=[roofs, *(product(4096, 2 * 4096**3 / 1e14 * 1e6, *of) for of in (
                ("high", "matmul"), ("medium", "matmul_coop", "transfer"))), product(512, 1e6),
             product(4096, 2 * 4096**3 / 60e12 * 1e6 / 0.7),
             added(1 << 24, 12 * (1 << 24) / 3e12 * 1e6 / 0.9), added(1 << 26, 12 * (1 << 26) / 3e12 * 1e6 / 0.5)],
        step=[step("W1", "ag captured", 150.0), step("W2", "ag captured", 100.0), step("W2", "torch eager", 90.0),
              step("W3", "ag captured", 100.0), step("W3", "ag captured bf16", 100.0),
              step("W3", "torch fused bf16", 90.0), step("W3", "torch graph bf16", 80.0)])}
    assert lines["tests of kernels and ops"] == ["all pass", "1 passed, 1 failed, 0 skipped of 2", "MISSED"]
    assert lines["matrix product, float32, 4096 x 4096"] == ["67%", "70%", "met"]  # whatever 512 is
    assert lines["elementwise, sums, optimizer"] == ["85%", "50 to 90%", "MISSED"]
    assert lines["attention"] == ["50%", "", "not measured"]
    assert lines["W1, captured"] == ["200 us", "150 us", "met"]
    assert lines["W2, captured, against PyTorch's best"] == ["1x", "0.90x", "MISSED"]
    assert lines["W3, captured, against PyTorch's best"] == ["1x", "100 us", "not measured"]
    assert lines["W3 bf16, captured, against PyTorch's best"] == ["1x", "0.80x", "MISSED"]
    assert lines["matrix product, bfloat16, on an H200"] == ["300 TFLOP/s", "100 TFLOP/s", "MISSED"]
    assert lines["matrix product, high precision, on an H200"] == ["90 TFLOP/s", "float32's kernels ran", "MISSED"]


def test_a_call_that_was_ended_meets_no_goal(tmp_path: Path) -> None:
    """Measure a part only: its results are good, and say nothing of the rest."""
    roofs = {"peer": "ag", "case": "roofs", "sizes": "large", "flops": 60e12, "bytes": 3e12, "empty": 0.0}
    conv = {"peer": "ag", "case": "conv 32x16x16x32x3", "us": 0.1, "launches": 1}
    lines = {line[0]: line[1:] for line in verdict_on(
        tmp_path, kernels=[{"tests": 3}, {"test": "a", "outcome": "passed"}, {"test": "b", "outcome": "skipped"}],
        ops=[roofs, conv])}
    assert lines["tests of kernels and ops"] == ["all pass", "1 passed, 0 failed, 1 skipped of 3", "not all measured"]
    assert lines["convolution"][2] == "not all measured"


def test_work_of_the_cases() -> None:
    Case = run_path(str(BENCHMARKS / "ops.py"))["Case"]  # not by its name, which a folder of tests has, too
    assert Case("matmul", (2, 3, 5)).flops == 60 and Case("matmul", (2, 3, 5)).bytes == 4 * (6 + 15 + 10)
    conv = Case("conv", (2, 3, 5, 8, 3))  # batch, channels in and out, side, kernel
    assert conv.flops == 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3)
    assert conv.bytes == 4 * (2 * 3 * 8 * 8 + 2 * 5 * 8 * 8 + 5 * 3 * 3 * 3)
    assert Case("AdamW", (100,)).bytes == 2800
    attention = Case("attention", (2, 7, 4))
    assert attention.flops == 4 * 2 * 7 * 7 * 4 and attention.bytes == 4 * 4 * 2 * 7 * 4
    assert Case("softmax", (10, 20)).bytes == 1600 and Case("softmax", (10, 20)).name == "softmax 10x20"
