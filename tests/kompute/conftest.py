"""Fixtures for the tests of the patched kp binding: the drivers, a shader, a subprocess.

Every test runs once per Vulkan driver listed in AG_TEST_ICDS, or on lavapipe where it is installed.
"""

import glob
import importlib
import os
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from helpers import forked
from helpers.devices import EXTENSION, built_layers

RECIPE = Path(__file__).parents[2] / "third_party" / "kp"
ASKED = [path for path in os.environ.get("AG_TEST_ICDS", "").split(os.pathsep) if path]
ICDS = ASKED or sorted(glob.glob("/usr/share/vulkan/icd.d/lvp_icd*.json"))

# b[dst + i] = rounds steps of a generator, from a[src + (i + 1) % n]: needs its neighbour's result.
SHADER = """
#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer A { uint a[]; };
layout(std430, binding = 1) buffer B { uint b[]; };
layout(push_constant) uniform Launch { uint src; uint dst; uint n; uint rounds; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= n) return;
    uint v = a[src + (i + 1) % n];
    for (uint r = 0; r < rounds; r++) v = v * 1664525u + 1013904223u;
    b[dst + i] = v;
}
"""


@pytest.fixture(scope="session")
def kp() -> ModuleType:
    """The binding; its absence is a failure where AG_TEST_ICDS asks for these tests."""
    try:
        return importlib.import_module(EXTENSION)
    except ImportError as error:
        reason = f"{EXTENSION} cannot be imported ({error}): pip install -e ."
    if ASKED:
        pytest.fail(reason)
    pytest.skip(reason)


# Not in the quick leg: what is tested here is third_party/kp, and it rarely changes.
DRIVERS = [pytest.param(path, id=Path(path).stem, marks=pytest.mark.slow) for path in ICDS]
OF_THE_BINDING = ("test_kp_async", "test_kp_lifetime", "test_kp_together")  # which waits alike for any driver


def pytest_itemcollected(item: pytest.Item) -> None:
    """Try what takes long and is the binding's own on one driver."""
    if item.path.stem in OF_THE_BINDING:
        item.add_marker(pytest.mark.not_on(*ICDS[1:]))


@pytest.fixture(params=DRIVERS or [pytest.param(None, id="no-driver")])
def icd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One driver, which is the only one that a Manager made in this test will see."""
    if request.param is None:
        pytest.skip("no lavapipe in /usr/share/vulkan/icd.d, and AG_TEST_ICDS is not set")
    if not Path(request.param).is_file():
        pytest.fail(f"AG_TEST_ICDS names {request.param}, which is not a file")
    monkeypatch.setenv("VK_ICD_FILENAMES", request.param)
    monkeypatch.delenv("VK_DRIVER_FILES", raising=False)  # it would win
    return request.param


@pytest.fixture(scope="session")
def spirv_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shader")
    source, output = folder / "step.comp", folder / "step.spv"
    source.write_text(SHADER)
    subprocess.run(["glslangValidator", "-V", "-o", output, source], check=True, capture_output=True)
    return output


class Rig:
    """A device with an arena of `words` zeros and the test shader, both bindings on the arena."""

    def __init__(self, kp: ModuleType, spirv: bytes, words: int = 1 << 16) -> None:
        self.kp = kp
        self.manager = kp.Manager()
        self.arena = self.manager.arena(words)
        none, four = np.zeros(0, np.uint32), np.zeros(4, np.uint32)
        self.algorithm = self.manager.algorithm([self.arena, self.arena], spirv, (1, 1, 1), none, four)
        self.write(np.zeros(words, np.uint32))

    def host(self, values: np.ndarray) -> object:
        return self.manager.tensor_t(values.astype(np.uint32), self.kp.TensorTypes.host)

    def write(self, values: np.ndarray, at: int = 0) -> None:
        regions = [(0, 4 * at, 4 * len(values))]
        self.manager.sequence().eval(self.kp.OpCopy(self.host(values), self.arena, regions))

    def read(self, count: int, at: int = 0) -> np.ndarray:
        host = self.host(np.zeros(count))
        sequence = self.manager.sequence()
        sequence.record(self.kp.OpCopy(self.arena, host, [(4 * at, 0, 4 * count)]))
        sequence.record(self.kp.OpBarrier(host=True)).eval()
        return host.data().copy()

    def step(self, sequence: object, src: int, dst: int, n: int, rounds: int = 1, **options: bool) -> None:
        push = np.array([src, dst, n, rounds], np.uint32).tobytes()
        sequence.dispatch(self.algorithm, push, (n + 63) // 64, **options)

    def long_work(self, sequence: object) -> None:
        """Record work that keeps a software driver busy for a good part of a second."""
        half = 1 << 12
        for k in range(6):
            self.step(sequence, k % 2 * half, (k + 1) % 2 * half, half, rounds=60_000)


def steps(values: np.ndarray, count: int) -> np.ndarray:
    """Return `values` after `count` launches of one round."""
    for _ in range(count):
        values = np.roll(values, -1) * np.uint32(1664525) + np.uint32(1013904223)
    return values


@pytest.fixture
def rig(kp: ModuleType, icd: str, spirv_file: Path):
    rig = Rig(kp, spirv_file.read_bytes())
    yield rig
    rig.manager.destroy()


@pytest.fixture
def expected():
    return steps


@pytest.fixture
def python(kp: ModuleType, icd: str):
    """Run Python code that uses `kp` in a process of its own, on this test's driver; a crash fails the test."""

    def run(code: str, **environment: str) -> str:
        done = forked.run(f"import {EXTENSION} as kp\n{code}", environment=environment)
        assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def fault_layer(tmp_path: Path) -> dict[str, str]:
    return built_layers(tmp_path, "VK_LAYER_KP_fault")
