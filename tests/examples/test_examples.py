"""The examples run as a user runs them, at reduced size, on the CPU and on the Vulkan devices, alone and together."""

from __future__ import annotations

import itertools
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.devices import vulkan_device

pytestmark = pytest.mark.slow  # they change with their own folder
EXAMPLES = Path(__file__).parents[2] / "examples"
FEW_STEPS = "250"  # of dp_iris; the accuracies are between 0.967 and 0.980 then, on the CPU


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", *command], cwd=EXAMPLES, capture_output=True, text=True,
                          timeout=300, check=False)


def output(*command: str) -> str:
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check_iris(text: str, replicas: int) -> None:
    assert [line[:2] for line in text.splitlines() if re.match(r"\d\. ", line)] == ["1.", "2.", "3.", "4.", "5."]
    equal = re.search(r"parameters equal on (\d) replicas? after each of (\d+) steps; SHA-256 at the end:\n +\w{64}\n",
                      text)
    assert equal is not None, text
    assert (equal[1], equal[2]) == (str(replicas), FEW_STEPS)
    final = re.search(r"^final accuracy: (.*)$", text, re.M)
    assert final is not None, text
    accuracies = [float(number) for number in re.findall(r"\d\.\d+", final[1])]
    assert len(accuracies) == 4 and min(accuracies) >= 0.95


@pytest.mark.not_on("swiftshader")  # here and below it is one of two vendors
@pytest.mark.parametrize("replicas", [1, 2])
def test_iris_on_one_device(device: str, replicas: int) -> None:
    check_iris(output("dp_iris.py", "--devices", device, "--replicas", str(replicas), "--n-iter", FEW_STEPS,
                      "--no-plot"), replicas)


@pytest.mark.vulkan
def test_iris_on_two_vendors_and_the_cpu(lavapipe: str, swiftshader: str) -> None:
    devices = f"{lavapipe},{swiftshader},cpu"
    check_iris(output("dp_iris.py", "--devices", devices, "--n-iter", FEW_STEPS, "--no-plot"), 3)


def test_iris_draws_the_loss() -> None:
    pytest.importorskip("matplotlib", reason="it draws the loss curves; pip install matplotlib")
    picture = EXAMPLES / "loss_curve.png"
    picture.unlink(missing_ok=True)
    text = output("dp_iris.py", "--devices", "cpu,cpu:1", "--n-iter", FEW_STEPS)
    assert f"loss curves: {picture}" in text
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000


def test_iris_without_matplotlib() -> None:
    script = "import runpy, sys; sys.modules['matplotlib'] = None; runpy.run_path('dp_iris.py', run_name='__main__')"
    text = output("-c", script, "--devices", "cpu", "--n-iter", FEW_STEPS)
    assert "no picture of the loss: matplotlib is not installed (pip install matplotlib)" in text


@pytest.mark.parametrize(("command", "fault"), [
    (("dp_iris.py", "--devices", "cpu", "--n-iter", "1", "--no-plot"), "every accuracy must be at least 0.95"),
    (("digits_cnn.py", "--epochs", "1"), "the accuracy must be at least 0.95"),
    (("dp_digits.py", "--steps", "4"), "weights and losses must be equal, and the accuracy at least 0.95"),
    (("text_transformer.py", "--steps", "2"), "the loss must fall below half of what it was")])
def test_an_example_fails_when_it_learns_too_little(command: tuple[str, ...], fault: str) -> None:
    done = run(*command)
    assert done.returncode == 1 and done.stderr == f"FAILED: {fault}\n"


def test_iris_fails_when_replicas_differ() -> None:
    import ag

    module = runpy.run_path(str(EXAMPLES / "dp_iris.py"))
    check, model, other = module["ReplicaCheck"](), module["make_model"](), module["make_model"]()
    check(ag.DPStep(0, 0.5, [model, model]))
    with pytest.raises(SystemExit, match="after step 2 the replicas differ"):
        check(ag.DPStep(1, 0.5, [model, other]))


@pytest.mark.parametrize("script", ["dp_iris.py", "dp_train_demo.py"])
def test_an_unknown_device_is_one_line(script: str) -> None:
    done = run(script, "--devices", "cuda:0")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "unknown device 'cuda:0'" in done.stderr


def check_demo(text: str) -> None:
    lines = re.findall(r"^ +(PASS|FAIL) ", text, re.M)
    assert lines == ["PASS"] * 18
    assert text.endswith("all checks passed\n")


@pytest.mark.not_on("swiftshader")
def test_demo_on_one_device(device: str) -> None:
    check_demo(output("dp_train_demo.py", "--devices", device))


@pytest.mark.vulkan
def test_demo_on_two_vendors(lavapipe: str, swiftshader: str) -> None:
    check_demo(output("dp_train_demo.py", "--devices", f"{lavapipe},{swiftshader}"))


def test_demo_fails_when_replicas_differ(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module: dict[str, Any] = runpy.run_path(str(EXAMPLES / "dp_train_demo.py"))
    numbers = itertools.count()
    monkeypatch.setattr(sys, "argv", ["dp_train_demo.py", "--devices", "cpu"])
    monkeypatch.setitem(module["main"].__globals__, "digest", lambda model: str(next(numbers)))
    assert module["main"]() == 1
    assert "FAIL  2 replica(s): parameters have one SHA-256 after every step" in capsys.readouterr().out


def test_tour() -> None:
    # It visits every device that is there and has assertions of its own.
    text = output("autograd_tour.py")
    assert re.findall(r"^(\d)\. ", text, re.M) == list("1234567")


def check_digits(text: str, enough: float) -> None:
    found = re.search(r"^accuracy on 359 digits held out: (\d\.\d+), after", text, re.M)
    assert found is not None and float(found[1]) >= enough, text


@pytest.mark.not_on("swiftshader")
def test_digits(device: str) -> None:
    check_digits(output("digits_cnn.py", "--device", device, "--epochs", "4"), 0.95)


def test_digits_at_full_size() -> None:
    check_digits(output("digits_cnn.py"), 0.97)


def check_job(text: str, steps: int, devices: str) -> float:
    assert f"the power is gone in step {steps // 2}\n" in text
    found = re.search(rf"^on {devices}: equal to the bit after a crash: True, accuracy (\d\.\d+)$", text, re.M)
    assert found is not None, text
    return float(found[1])


def test_a_job_on_several_devices_crashes_and_goes_on() -> None:
    assert check_job(output("dp_digits.py"), 150, "cpu, cpu:1") >= 0.95


@pytest.mark.vulkan
def test_a_job_on_two_vendors_crashes_and_goes_on(lavapipe: str, swiftshader: str) -> None:
    # Too few steps for the accuracy, as software drivers are slow.
    done = run("dp_digits.py", "--devices", f"{lavapipe},{swiftshader}", "--steps", "10")
    check_job(done.stdout, 10, f"{lavapipe}, {swiftshader}")


def test_a_job_fails_when_the_crash_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module: dict[str, Any] = runpy.run_path(str(EXAMPLES / "dp_digits.py"))
    seeds = itertools.count()
    train = module["ag"].dp_train
    monkeypatch.setattr(module["ag"], "dp_train", lambda *a, **k: train(*a, **{**k, "seed": next(seeds)}))
    monkeypatch.setattr(module["training"], "evaluate", lambda *a, **k: {"accuracy": 1.0})
    monkeypatch.setattr(sys, "argv", ["dp_digits.py", "--devices", "cpu", "--steps", "4"])
    with pytest.raises(SystemExit, match="FAILED: weights and losses must be equal"):
        module["main"]()


@pytest.mark.skipif(os.environ.get("AG_BARRIER_ALL") == "1",
                    reason="trains for a quarter of an hour under validation; its launches are those of other tests")
@pytest.mark.parametrize(("driver", "seeds"), [
    ("cpu", 3),  # SwiftShader takes minutes for as many steps
    pytest.param("lavapipe", 1, marks=(pytest.mark.vulkan, pytest.mark.long))])
def test_mixed_precision(driver: str, seeds: int) -> None:
    device = driver if driver == "cpu" else vulkan_device(driver)
    text = output("mixed_precision.py", "--device", device, "--seeds", str(seeds))
    assert re.findall(r"^ *(\w+), seed \d: accuracy 0\.9\d+, .* weights in (\w+),", text, re.M) == [
        (dtype, dtype) for dtype in ("f32", "bf16", "f16") for _ in range(seeds)]
    means = re.search(r"^f32 (\S+), bf16 (\S+), f16 (\S+)$", text, re.M)
    assert means is not None, text
    exact, *rounded = map(float, means.groups())
    assert min(rounded) >= exact - 0.005 and exact >= 0.97, text


def test_mixed_precision_fails_when_16_bits_are_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module: dict[str, Any] = runpy.run_path(str(EXAMPLES / "mixed_precision.py"))
    monkeypatch.setattr(sys, "argv", ["mixed_precision.py", "--epochs", "1", "--seeds", "1"])
    monkeypatch.setitem(module["main"].__globals__, "MOST_WORSE", -1.0)
    with pytest.raises(SystemExit, match="FAILED: a 16-bit type reads more than"):
        module["main"]()


def test_transformer() -> None:
    # On the CPU only: its many small launches take minutes on a driver that is software.
    text = output("text_transformer.py", "--steps", "150")
    losses = re.search(r"^loss per character: (\d\.\d+) at first, (\d\.\d+) after 150 steps$", text, re.M)
    assert losses is not None and float(losses[2]) < float(losses[1]) / 2, text
    assert len(text.split("\n\n", 1)[1].removesuffix("\n")) == len("Shall I ") + 200


def test_raw_parameters() -> None:
    text = output("raw_parameters.py")
    assert re.findall(r"^(\w\d): (\w+), largest", text, re.M) == [(name, "ok") for name in ("W1", "b1", "W2", "b2")]
    assert text.count("4 of 4 right") == 2


NOT_CHECKED = ("parallel_common.py", "parallel_modes.py")  # the losses of what they train, by `check`
PARALLEL = sorted(p.name for p in EXAMPLES.glob("parallel_*.py") if p.name not in NOT_CHECKED)


def check_parallel(text: str) -> None:
    assert re.search(r": loss 0\.\d+ at first, 0\.\d+ after \d+ steps, at most \d\.\de[-+]\d\d from one device$", text)


@pytest.mark.parametrize("script", [name for name in PARALLEL if name != "parallel_vendors.py"])
def test_parallel(script: str) -> None:
    check_parallel(output(script))


def test_processes_are_launched() -> None:
    pytest.importorskip("mpi4py", reason="pip install ag-autograd[mpi] brings it, and Open MPI")
    text = output("-m", "ag", "launch", "-n", "2", "parallel_processes.py")
    assert text.startswith("2 processes: ")
    check_parallel(text)


@pytest.mark.vulkan
@pytest.mark.parametrize("script", ["parallel_data.py", "parallel_pipeline.py", "parallel_tensor.py"])
def test_parallel_on_two_vendors(script: str, lavapipe: str, swiftshader: str) -> None:
    check_parallel(output(script, "--devices", f"{lavapipe},{swiftshader}"))


@pytest.mark.vulkan
def test_vendors_and_the_cpu(lavapipe: str, swiftshader: str) -> None:
    text = output("parallel_vendors.py")
    assert {lavapipe, swiftshader, "cpu"} <= set(re.findall(r"^([\w:]+): \d+ samples$", text, re.M))
    assert "replicas equal after each of 60 steps" in text
    check_parallel(text)


def test_parallel_fails_when_the_losses_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    check = runpy.run_path(str(EXAMPLES / "parallel_common.py"))["check"]
    check("equal", [1.0, 0.1], [1.0, 0.1])
    for several, one in (([1.0, 0.1], [1.0, 0.1002]), ([1.0, 0.9], [1.0, 0.9])):
        with pytest.raises(SystemExit, match="FAILED: the losses must fall"):
            check("not", several, one)


def test_modes_are_measured() -> None:
    text = output("parallel_modes.py", "--width", "16", "--steps", "1")
    modes = re.findall(r"^(\w[\w ]+\w) +\d+\.\d ms per step, +\d+\.\d+ of one device, +0\.0 MiB", text, re.M)
    assert modes == ["one device", "DataParallel", "tensor parallel", "ModelParallel", "Pipeline"]


@pytest.mark.parametrize(("script", "shown"), [
    ("compressed_gradients.py", r"1% in f16: .* 600 bytes per step, 64 times fewer"),
    ("zero_memory.py", r"stage 3: cpu \d+ KiB, cpu:1 .* largest difference from stage 1: 0$"),
    ("sync_gradients.py", r"by hand: .* equal on both workers: True"),
    ("parallel_loops.py", r"^cpu:1 was lost: going on after epoch 7$")])
def test_gradients_and_their_memory(script: str, shown: str) -> None:
    assert re.search(shown, output(script), re.M)


def check_by_hand(text: str, devices: list[str]) -> None:
    assert re.findall(r"^(\d)\. ", text, re.M) == list("1234")
    assert re.findall(r"^(\S+): \d+\.\d\d ms, \d+\.\d GFLOP/s$", text, re.M) == devices
    shares = re.search(r"^(.* \d+ rows): \d+\.\d\d ms$", text, re.M)
    assert shares is not None and sum(int(rows) for rows in re.findall(r" (\d+) rows", shares[1])) == 64
    assert re.search(r" GB/s; largest error: \d\.\de[+-]0\d$", text, re.M)


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu:1"]])
def test_devices_by_hand(devices: list[str]) -> None:
    check_by_hand(output("multi_gpu_example.py", "--size", "64", "--devices", ",".join(devices)), devices)


@pytest.mark.vulkan
def test_all_devices_by_hand(lavapipe: str, swiftshader: str) -> None:
    devices = sorted({lavapipe, swiftshader})
    check_by_hand(output("multi_gpu_example.py", "--size", "64"), [*devices, "cpu"])


# What newcomers came to do, each on one screen, and what a program prints when it worked.
PROGRAMS = {
    "image_folder.py": r"^digits\.onnx: \d+ kB", "ggmlr_vignette.py": r"^batches: accuracy 0\.9\d+$",
    "tabular_imbalanced.py": r"^class_weight='balanced': balanced accuracy 0\.[89]\d+$",
    "text_lora.py": r"^\d+ numbers adapted: ", "custom_layer.py": r"^accuracy on 360 digits held out: 0\.9\d+$",
}


@pytest.mark.parametrize("script", PROGRAMS)
def test_programs_of_newcomers(script: str) -> None:
    assert re.search(PROGRAMS[script], output(script), re.M)


SHORT = {**dict.fromkeys(("digits_cnn.py", "text_transformer.py", "dp_digits.py", *PROGRAMS), 60), **dict.fromkeys((
    "autograd_tour.py", "multi_gpu_example.py", "mixed_precision.py", "raw_parameters.py", "compressed_gradients.py",
    "zero_memory.py", "sync_gradients.py", "parallel_loops.py", *NOT_CHECKED, *PARALLEL), 80)}


@pytest.mark.parametrize("script", SHORT)
def test_short_examples_are_short(script: str) -> None:
    assert len((EXAMPLES / script).read_text("utf-8").splitlines()) <= SHORT[script]
