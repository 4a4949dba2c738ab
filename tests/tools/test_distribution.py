"""The distribution, without building it: its name in every message, the checker of wheels, the notes of a build."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import check_wheel
import pytest
import yaml

import kernels_build
from ag import version

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")


def test_the_name_is_that_of_pyproject() -> None:
    assert re.findall(r'^name = "(.*?)"', PROJECT, re.M) == [version.DISTRIBUTION]
    assert version.install_line() == "pip install ag-autograd"
    assert version.install_line("mpi") == "pip install 'ag-autograd[mpi]'"


def test_nobody_is_told_to_install_a_strangers_package() -> None:
    """Under the name of the import pip finds another project; and the extras are those that there are."""
    command = re.compile(r"pip3? install(?: -\S+)* ['\"`]?(ag[\w-]*)(?:\[(\w+)\])?")
    files = [path for folder in ("ag", "docs", "examples", "benchmarks", "tests") for ending in ("py", "md", "sh")
             for path in (ROOT / folder).rglob(f"*.{ending}")]
    files += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", ".github/workflows/wheels.yml")]
    texts = {path.name: path.read_text("utf-8") for path in files if path.is_file()}
    found = [(name, *match) for name, text in texts.items() for match in command.findall(text)]
    table = PROJECT.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    extras = {"", *re.findall(r"^(\w+) = \[", table, re.M)}
    wrong = [said for said in found if said[1] != version.DISTRIBUTION or said[2] not in extras]
    assert found and not wrong


def test_every_python_from_3_10_on() -> None:
    assert 'requires-python = ">=3.10"' in PROJECT
    for classifier in check_wheel.CLASSIFIERS:
        assert f'"{classifier}"' in PROJECT
    assert all(f'"cp3{minor}-*"' in PROJECT for minor in range(10, 15))


@pytest.mark.parametrize("name", [
    *(f".github/{file}" for file in ("dependabot.yml", "ISSUE_TEMPLATE/bug.yml", "ISSUE_TEMPLATE/config.yml",
                                     "ISSUE_TEMPLATE/device.yml", "workflows/docs.yml", "workflows/test.yml",
                                     "workflows/wheels.yml")), "CITATION.cff"])
def test_the_files_that_others_read_are_yaml(name: str) -> None:
    if name.startswith(".") and not (ROOT / ".github").is_dir():
        pytest.skip("a source archive has no workflows")
    assert isinstance(yaml.safe_load((ROOT / name).read_text("utf-8")), dict)


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert cited["version"] == version.__version__ and cited["url"] in PROJECT


INFO = "ag_autograd-0.1.0.dist-info"
SPV = check_wheel.KERNELS
Files = dict[str, str]
METADATA = "\n".join(["Metadata-Version: 2.4", f"Name: {version.DISTRIBUTION}", f"Version: {version.__version__}",
                      "Requires-Python: >=3.10", "Project-URL: Source, https://example.org",
                      *(f"Classifier: {name}" for name in check_wheel.CLASSIFIERS), "", "[ag](https://example.org)"])


@pytest.fixture(scope="module")
def files() -> Iterator[Files]:
    """Yield what a wheel of this tree holds, with empty files where only names matter; shaders are hashed once."""
    patch = pytest.MonkeyPatch()
    patch.setattr(kernels_build, "source_hash", cache(kernels_build.source_hash))
    kernels = {path.stem: {"sha256": kernels_build.source_hash(path)}
               for path in kernels_build.kernels(kernels_build.SHADERS)}
    found = {path.relative_to(ROOT).as_posix(): "" for path in (ROOT / "ag").rglob("*.py")}
    found |= {f"{SPV}{name}.spv": "" for name in kernels} | dict.fromkeys(check_wheel.DATA_SETS, "")
    found |= {f"{check_wheel.IN_C}manifest.json": json.dumps({"levels": ["", ".v3"]}),
              f"{check_wheel.IN_C}kernels.so": "", f"{check_wheel.IN_C}kernels.v3.so": ""}
    found |= {f"{INFO}/licenses/{name}": "" for name in ("LICENSE", "third_party/kp/LICENSE", "third_party/kp/NOTICE")}
    yield {**found, f"{SPV}manifest.json": json.dumps({"kernels": kernels, "left_out": []}), "ag/py.typed": "",
            f"{check_wheel.BACKEND}_kp.cpython-311-x86_64-linux-gnu.so": "", f"{INFO}/METADATA": METADATA,
            "ag/native/_code.cpython-311-x86_64-linux-gnu.so": "",
            f"{INFO}/entry_points.txt": "[console_scripts]\nag = ag.__main__:main\n", f"{INFO}/RECORD": ""}
    patch.undo()


def faults(files: Files, folder: Path, cpu_only: bool = False) -> list[str]:
    path = folder / "ag_autograd.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    with zipfile.ZipFile(path) as wheel:
        return list(check_wheel.faults(wheel, cpu_only))


def test_a_right_wheel(files: Files, tmp_path: Path) -> None:
    assert faults(files, tmp_path) == []


def without(name: str) -> Callable[[Files], Files]:
    return lambda files: {known: text for known, text in files.items() if known != name}


def changed(name: str, old: str, new: str) -> Callable[[Files], Files]:
    return lambda files: {**files, name: files[name].replace(old, new)}


DEFECTS: dict[str, tuple[Callable[[Files], Files], str]] = {
    "no extension": (lambda f: {n: t for n, t in f.items() if "_kp." not in n}, "it has 0 extensions _kp"),
    "no hot paths": (lambda f: {n: t for n, t in f.items() if "_code." not in n}, "it has 0 extensions _code"),
    "two extensions": (lambda f: {**f, f"{check_wheel.BACKEND}_kp.cpython-312-x86_64-linux-gnu.so": ""}, "it has 2"),
    "no kernels": (without(f"{SPV}manifest.json"), "the manifest of the kernels is missing"),
    "no libraries in C": (without(f"{check_wheel.IN_C}manifest.json"), "the manifest of the CPU's kernels is missing"),
    "a library missing": (without(f"{check_wheel.IN_C}kernels.v3.so"), "kernels.v3.so is missing"),
    "a library left out": (changed(f"{check_wheel.IN_C}manifest.json", '}', ', "left_out": {".v4": "old compiler"}}'),
                           "kernels.v4.so was left out: old compiler"),
    "a kernel missing": (without(f"{SPV}exp.spv"), "kernel exp is missing"),
    "a stray kernel": (lambda f: {**f, f"{SPV}gone.spv": ""}, f"{SPV}gone.spv is in no manifest"),
    "stale kernels": (changed(f"{SPV}manifest.json", '"exp": {"sha256": "', '"exp": {"sha256": "0'), "exp does not"),
    "a kernel less": (changed(f"{SPV}manifest.json", '"exp":', '"expo":'), "['exp', 'expo'] are not those"),
    "no types": (without("ag/py.typed"), "py.typed is missing"),
    "no data set": (without("ag/data/sets/iris.csv"), "ag/data/sets/iris.csv is missing"),
    "large data sets": (lambda f: {**f, "ag/data/sets/iris.csv": "1" * 120_001}, "its data sets have 120001 bytes"),
    "a test": (lambda f: {**f, "tests/test_api.py": ""}, "it holds tests/test_api.py"),
    "an old file": (lambda f: {**f, "ag/old.py": ""}, "ag/old.py is in the tree or in the wheel, not in both"),
    "a file missing": (without("ag/errors.py"), "ag/errors.py is in the tree or in the wheel, not in both"),
    "a note": (lambda f: {**f, f"{check_wheel.BACKEND}not_built.txt": "extension: no"}, "left out: extension: no"),
    "a cap": (changed(f"{INFO}/METADATA", ">=3.10", ">=3.10,<3.15"), "a cap keeps newer versions out"),
    "a wrong name": (changed(f"{INFO}/METADATA", version.DISTRIBUTION, "ag"), "its Name is ag"),
    "a dead link": (changed(f"{INFO}/METADATA", "https://example.org)", "docs/x.md)"), "links to ['docs/x.md']"),
    "no command": (changed(f"{INFO}/entry_points.txt", "ag =", "x ="), "the command ag is missing"),
    "no licence": (without(f"{INFO}/licenses/third_party/kp/NOTICE"), "the licence third_party/kp/NOTICE is missing"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_wrong_wheel_is_refused(files: Files, tmp_path: Path, defect: str) -> None:
    change, said = DEFECTS[defect]
    found = faults(change(files), tmp_path)
    assert len(found) <= 3 and said in found[0]


def test_a_wheel_for_the_cpu_must_say_why(files: Files, tmp_path: Path) -> None:
    bare = {name: text for name, text in files.items() if "/shader/spv/" not in name and "linux-gnu" not in name}
    assert faults(bare, tmp_path, cpu_only=True) == ["it should have no extension and say why"]
    assert faults({**bare, f"{check_wheel.BACKEND}not_built.txt": "extension: no"}, tmp_path, cpu_only=True) == []


@pytest.fixture(scope="module")
def native_build() -> ModuleType:
    """The build's steps, which live beside the package."""
    pytest.importorskip("setuptools", reason="pip has it in its own environment while it builds")
    recipe = str(ROOT / "third_party" / "kp")
    sys.path.insert(0, recipe)
    try:
        import native_build
    finally:
        sys.path.remove(recipe)
    return native_build


@pytest.mark.slow
def test_notes_are_one_line_for_each_step(native_build: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "vulkan" / native_build.NOTE
    native_build.note(path.parent, "kernels", "no glslangValidator")
    native_build.note(path.parent, "extension", "no compiler")
    native_build.note(path.parent, "kernels", "no spirv-opt")
    assert path.read_text() == "extension: no compiler\nkernels: no spirv-opt\n"
    native_build.note(path.parent, "extension", "")
    assert path.read_text() == "kernels: no spirv-opt\n"
    native_build.note(path.parent, "kernels", "")
    assert not path.exists()
    native_build.note(path.parent, "kernels", "")


def test_kernels_that_were_compiled_elsewhere_do(
    native_build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_build, "missing_tools", lambda: "glslangValidator not found")
    monkeypatch.setattr(kernels_build, "OUT", tmp_path)
    assert native_build.compile_shaders() == "glslangValidator not found"
    known = {path.stem: {"sha256": kernels_build.source_hash(path)}
             for path in kernels_build.wanted(kernels_build.SHADERS, ())}
    manifest = {"compiler": "another", "format": kernels_build.FORMAT, "kernels": known, "left_out": []}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    for name in known:
        (tmp_path / f"{name}.spv").touch()
    assert native_build.compile_shaders() == ""
    (tmp_path / "exp.spv").unlink()
    assert native_build.compile_shaders() == "glslangValidator not found"


def test_shaders_that_do_not_compile_are_no_error(native_build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> list[str]:
        raise kernels_build.ShaderError("exp.comp: glslangValidator failed:\nERROR: 0:1: bad")

    monkeypatch.setattr(kernels_build, "missing_tools", str)
    monkeypatch.setattr(kernels_build, "build", refuse)
    said = "the shaders do not compile (exp.comp: glslangValidator failed: ERROR: 0:1: bad)"
    assert native_build.compile_shaders() == said


def test_pages_of_the_description_lead_to_the_repository(native_build: ModuleType) -> None:
    text = native_build.description()
    assert f"]({native_build.PAGES}CONTRIBUTING.md)" in text and "](docs/" not in text
