"""Count what `import ag` loads, and what is loaded when first used; each test has an interpreter of its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from inspect import unwrap
from pathlib import Path

import pytest

import ag

ROOT = Path(__file__).parents[1]

OPTIONAL = {"kp", "mpi4py", "PIL", "torch", "matplotlib", "yaml", "onnx", "sklearn", "tensorboardX", "tqdm",
            "safetensors", "threadpoolctl"}
HEAVY = {"asyncio", "concurrent", "concurrent.futures", "csv", "decimal", "difflib", "email", "fractions", "getpass",
         "gzip", "hashlib", "http", "importlib.metadata", "ipaddress", "json", "logging", "multiprocessing", "pdb",
         "pkgutil", "pydoc", "queue", "random", "secrets", "select", "shutil", "signal", "socket", "ssl", "statistics",
         "subprocess", "tempfile", "traceback", "unittest", "urllib", "uuid", "xml", "zipfile"}
LATER = ("ag.capture.step", "ag.data", "ag.engine.backends", "ag.engine.compile", "ag.io", "ag.parallel",
         "ag.tools", "ag.training")


def inside(module: str, package: str) -> bool:
    """Return whether a module is a package or lies in it."""
    return module == package or module.startswith(package + ".")


def run(code: str) -> str:
    """Output of a fresh interpreter, which threads that wait for each other do not hold up."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_count_of_modules_is_loaded() -> None:
    """The import takes what 100 files take, a third to half of numpy's time; each file more is 0.2 ms."""
    loaded = run("import numpy, sys; before = {*sys.modules}; import ag; print(*sys.modules.keys() - before)").split()
    ours = {name for name in loaded if name.partition(".")[0] == "ag"}
    assert "ag" in ours and not {name for name in ours if any(inside(name, later) for later in LATER)}
    assert len(ours) <= 100, sorted(ours)
    theirs = {*loaded} - ours
    assert not theirs & (OPTIONAL | HEAVY)
    assert len(theirs) <= 24, sorted(theirs)


def test_a_training_on_the_cpu_loads_no_driver_and_no_package_but_numpy() -> None:
    """Elsewhere the first tensor loads the drivers and looks for cards."""
    loaded = run("import ag, sys\n"
                 "ag.ag_device('cpu')\n"
                 "model = ag.nn.Linear(2, 1)\n"
                 "optimizer = ag.optim.Adam(model.parameters())\n"
                 "with ag.with_grad_tape():\n"
                 "    loss = ag.ops.mean(model(ag.ag_tensor([[1.0], [2.0]])) ** 2)\n"
                 "optimizer.step(ag.backward(loss))\n"
                 "print(*sys.modules)").split()
    assert not OPTIONAL & {*loaded} and "ag.engine.backends.vulkan" not in loaded
    assert not {name for name in loaded if any(inside(name, later) for later in LATER[-3:])}


def for_type_checkers() -> dict[str, str]:
    """Return the names of ag/_later.py, with the files that they are imported from."""
    found = {}
    for node in ast.parse((ROOT / "ag" / "_later.py").read_text("utf-8")).body[1:]:
        assert isinstance(node, ast.ImportFrom) and all(alias.asname == alias.name for alias in node.names)
        found.update({alias.name: str(node.module) for alias in node.names})
    return found


def test_type_checkers_see_what_is_loaded_later() -> None:
    known = for_type_checkers()
    assert known == vars(ag)["_homes"]() and len(known) > 40
    for name in known.keys() - {"AgClassifier", "AgRegressor"}:  # of scikit-learn, which may not be there
        there = getattr(import_module(known[name]), name)
        assert unwrap(there) is unwrap(getattr(ag, name)), name  # a public one answers wrong arguments


@pytest.mark.slow
def test_every_name_is_found_when_it_is_first_used() -> None:
    run("import ag, pickle, pydoc\n"
        "assert 'dp_train' in dir(ag) and 'parallel' in dir(ag)\n"
        "for name in ag.__all__:\n"
        "    if name in ag._homes():\n"
        "        assert name not in vars(ag), name\n"
        "        assert getattr(ag, name) is vars(ag)[name], name\n"
        "        assert pickle.loads(pickle.dumps(getattr(ag, name))) is getattr(ag, name), name\n"
        "assert {'data', 'io', 'parallel', 'tools', 'training'} <= vars(ag).keys()\n"
        "assert 'dp_train' in pydoc.render_doc(ag)")


@pytest.mark.parametrize("first", ["from ag import *", *(pytest.param(code, marks=pytest.mark.slow) for code in (
    "import ag.parallel", "from ag import training", "import ag.io.onnx", "from ag import fit", "import ag; ag.tools",
    "from ag.training import fit", "import pickle; pickle.loads(b'cag\\ndp_train\\n.')",
    "import pydoc, ag; assert 'dp_train' in pydoc.render_doc(ag)"))])
def test_whatever_comes_first(first: str) -> None:
    run(f"{first}\n"
        "import ag\n"
        "from ag import io, parallel\n"
        "assert ag.parallel is parallel and ag.dp_train is parallel.dp_train and io.load_weights is ag.load_weights\n"
        "assert ag.fit is ag.training.fit and ag.data.DataLoader is ag.ag_dataloader")


def test_a_wrong_name_is_answered_from_what_nobody_has_used() -> None:
    assert run("import ag\n"
               "assert not hasattr(ag, 'dp_trian') and 'ag.parallel' not in __import__('sys').modules\n"
               "for name in ('dp_trian', 'Datalader', 'EarlyStoping'):\n"
               "    try: getattr(ag, name)\n"
               "    except AttributeError as error: print(error)").splitlines() == [
        "ag: there is no 'dp_trian'; did you mean ag.dp_train (also ag.parallel.dp_train)?",
        "ag: there is no 'Datalader'; did you mean ag.data.DataLoader (also ag.ag_dataloader)?",
        "ag: there is no 'EarlyStoping'; did you mean ag.training.EarlyStopping?"]


AT_ONCE = """
import ag, sys, threading, time
from importlib.machinery import PathFinder

class Slow:  # the first thread has locked a folder, and not entered it in sys.modules, when the second begins
    def find_spec(self, name, path, target=None):
        spec = PathFinder.find_spec(name, path, target)
        if name == {folder!r}:
            spec.loader.create_module = wait
        return spec

def wait(spec):
    inside.set()
    time.sleep(0.5)

inside = threading.Event()
sys.meta_path.insert(0, Slow())
errors = []

def use(text):
    try:
        exec(text, {{"ag": ag}})
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=use, args=(text,), daemon=True) for text in ({first!r}, {second!r})]
threads[0].start()
assert inside.wait(60)
threads[1].start()
for thread in threads:
    thread.join(60)
assert not errors and not any(thread.is_alive() for thread in threads), errors
"""


@pytest.mark.parametrize(("first", "folder", "second"), [
    ("ag.dp_train", "ag.parallel", "ag.fit"),
    *(pytest.param(*names, marks=pytest.mark.slow) for names in (
        ("import ag.parallel", "ag.parallel", "from ag.training import fit"),
        ("ag.parallel", "ag.parallel", "ag.doctor"),
        ("ag.data", "ag.data", "ag.dp_train"), ("ag.ag_load_model", "ag.io", "import ag.parallel"),
        ("ag.fit", "ag.training", "ag.fit")))])
def test_two_threads_at_once(first: str, folder: str, second: str) -> None:
    """One that imports a folder and one that imports a file in it would wait for each other."""
    run(AT_ONCE.format(first=first, folder=folder, second=second))


@pytest.mark.slow
def test_in_a_captured_step() -> None:
    run("import ag, sys\n"
        "from ag import nn, ops\n"
        "def made():\n"
        "    ag.ag_seed(0)\n"
        "    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))\n"
        "    return model, ag.optim.Adam(model.parameters(), lr=0.1)\n"
        "def stepped(model, optimizer):\n"
        "    def step(x):\n"
        "        with ag.with_grad_tape():\n"
        "            batch = ag.data.Batch(ag.ag_checkpoint(model, x))\n"
        "            loss = ops.mean(batch.x ** 2)\n"
        "        optimizer.step(ag.backward(loss))\n"
        "        return loss\n"
        "    return step\n"
        "model, optimizer = made()\n"
        "captured = ag.ag_capture(stepped(model, optimizer))\n"
        "assert 'ag.data' not in sys.modules and 'ag_checkpoint' not in vars(ag)\n"
        "x = [ag.ag_tensor([[1.0, i], [2.0, -i], [i, i]]) for i in range(6)]\n"
        "losses, programs = [], []\n"
        "for one in x:\n"
        "    losses.append(captured(one).item())\n"
        "    programs.append(captured.program)\n"
        "eager = stepped(*made())\n"
        "assert losses == [eager(one).item() for one in x], losses\n"
        "assert programs[1] is not None and all(p is programs[1] for p in programs[1:]), programs")
