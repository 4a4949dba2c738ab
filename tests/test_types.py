"""Check that the types which callers and rules of ops are told are true.  In `make lint` mypy reads this file too;
a call that mypy must refuse carries the error that mypy must give."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

import numpy as np
import pytest
import typed_program

import ag
from ag.autograd.op import Cotangents, Need, Result, Run, op
from ag.autograd.tensor import OPS, Tensor, TensorLike
from ag.engine.buffer import Buffer
from ag.engine.kernels.conv import max_pool2d
from ag.engine.kernels.elementwise import copy
from ag.engine.shape import Window
from ag.names import NAMESPACES

if TYPE_CHECKING:
    from typing_extensions import assert_type

MOST_ANY, MOST_IGNORED = 337, 5


def test_little_is_untyped() -> None:
    text = "\n".join(path.read_text("utf-8") for path in Path(ag.__file__).parent.rglob("*.py"))
    assert len(re.findall(r"\bAny\b", text)) <= MOST_ANY
    assert text.count("# type: ignore") <= MOST_IGNORED


def test_hints_of_public_names_can_be_read() -> None:
    for space in NAMESPACES:
        for name in dir(module := import_module(space)):
            thing = getattr(module, name)
            own = vars(thing).items() if inspect.isclass(thing) and not issubclass(thing, tuple) else ()
            for called in [thing, *(x for key, x in own if inspect.isfunction(x) and not key.startswith("_"))]:
                if inspect.isfunction(called) or inspect.isclass(called):
                    assert get_type_hints(called) is not None, (space, name, called)


def test_callers_pass_tensors_arrays_and_numbers() -> None:
    functions: list[Callable[[TensorLike], Tensor]] = [ag.ag_exp, ag.ag_relu]
    for f in functions:
        for x in (0.0, np.zeros((2, 1)), ag.ag_tensor([0.0, 0.0])):
            assert f(x).dtype == "f32"
    assert ag.ag_clamp(2.0, hi=1.0).item() == 1.0
    assert ag.ag_concat([ag.ag_tensor([1.0]), np.ones((1, 1))], dim=0).shape == (2, 1)


def refused_by_mypy(buffer: Buffer, run: Run) -> None:
    ag.ag_exp("1")  # type: ignore[arg-type]
    ag.ag_exp(buffer)  # type: ignore[arg-type]
    ag.ag_add(1.0)  # type: ignore[call-arg]
    ag.ag_clamp(1.0, low=0.0)  # type: ignore[call-arg]
    run(copy, 1.0)  # type: ignore[arg-type]
    run(copy, buffer).view(1)  # type: ignore[arg-type]
    run(max_pool2d, buffer, window=Window((1, 1))).view(())  # type: ignore[attr-defined]


def known_to_type_checkers(model: ag.nn.Sequential, x: Tensor, loader: ag.data.DataLoader) -> None:
    """No Any where a tensor or a model is meant; nothing here runs."""
    assert_type(model(x), Tensor)
    assert_type(model.forward(x), Tensor)
    assert_type(ag.ops.softmax(x, axis=0), Tensor)
    assert_type(ag.ops.sum(x, axis=0, keepdims=True), Tensor)
    assert_type(x.mean(axis=0, keepdims=True) + 1.0, Tensor)
    assert_type(ag.ag_linear(1, 2), ag.nn.Linear)
    assert_type(ag.ag_load_model("file"), ag.nn.Layer)
    assert_type(ag.ag_load_model("file", lambda: ag.nn.Linear(1, 1)), ag.nn.Linear)
    assert_type(ag.ag_capture(known)(x), Tensor)
    for inputs, _ in loader:
        assert_type(inputs, Tensor)
    x.cuda()  # type: ignore[attr-defined]
    ag.nn.Liner(1)  # type: ignore[attr-defined]


def known(x: Tensor) -> Tensor:
    """A step with types."""
    return x


def test_a_program_with_types_runs(capsys: pytest.CaptureFixture[str]) -> None:
    typed_program.main()
    assert capsys.readouterr().out.startswith("loss ")


@pytest.fixture(scope="module")
def pyright(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A command that runs pyright: the one that is installed, or basedpyright, which has it, out of PyPI."""
    for name in ("pyright", "basedpyright"):
        if find_spec(name) is not None:
            return [sys.executable, "-m", name]
    folder = tmp_path_factory.mktemp("pyright")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "basedpyright"]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        pytest.skip(f"pyright is not installed, and could not be: {done.stderr.strip().splitlines()[-1:]}")
    return [str(folder / "bin" / "basedpyright")]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="environments have other folders there")
@pytest.mark.parametrize(("more", "said"), [("", ["0 errors, 0 warnings"]), (
    "\nreveal_type(ag.nn.Linear(1, 2)(ag.ag_tensor([1.0])))\n"
    "\nreveal_type(ag.fit(nn.Linear(1, 1), data.DataLoader(np.ones((1, 1)))))\n"
    "\nag.ag_add(1.0, 'x')\n" "\nag.Linera\n",
    ['is "Tensor"', 'is "History"', 'type "Literal[\'x\']"', '"Linera" is not a known attribute', "3 errors"])],
    ids=["right", "wrong"])
def test_pyright_reads_the_program(pyright: list[str], tmp_path: Path, more: str, said: list[str]) -> None:
    """It finds nothing in it, in strict mode, in which what is Unknown is an error, and knows what it did not find."""
    (tmp_path / "program.py").write_text(Path(typed_program.__file__).read_text("utf-8") + more, "utf-8")
    root = Path(ag.__file__).parents[1]
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(root)], "include": ["program.py"],
                "venvPath": str(Path(sys.prefix).parent), "venv": Path(sys.prefix).name}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    done = subprocess.run([*pyright, "-p", str(tmp_path)], capture_output=True, text=True, timeout=300, check=False)
    assert not [text for text in said if text not in done.stdout], done.stdout + done.stderr


# What an editor that runs nothing offers after a line, and what a running interpreter does, as in Jupyter.
COMPLETED = {"ag.nn.Lin": "Linear", "ag.ag_lin": "ag_linear", "ag.ops.softm": "softmax", "ag.optim.AdamW": "AdamW",
             "ag.data.DataL": "DataLoader", "ag.parallel.dp_t": "dp_train", "ag.training.Early": "EarlyStopping",
             "ag.fi": "fit", "ag.AgCl": "AgClassifier", "ag.nn.Sequential(ag.nn.Linear(2, 2)).param": "parameters",
             "ag.nn.Linear(2, 2)(1.0).resh": "reshape", "ag.ops.softmax(1.0).num": "numpy"}


@pytest.mark.slow
@pytest.mark.parametrize("running", [False, True])
def test_editors_complete_names(running: bool) -> None:
    jedi = pytest.importorskip("jedi", reason="jedi is not installed, so nothing was completed")
    for line, name in COMPLETED.items():
        if running and "(" in line:
            continue  # an interpreter asks the objects themselves, and calls nothing
        if name.startswith("Ag") and find_spec("sklearn") is None:
            continue
        script = jedi.Interpreter(line, [{"ag": ag}]) if running else jedi.Script(f"import ag\n{line}")
        assert name in [found.name for found in script.complete()], line
    for call in ("ag.nn.Linear(", "ag.ag_linear("):
        script = jedi.Interpreter(call, [{"ag": ag}]) if running else jedi.Script(f"import ag\n{call}")
        (shown,) = script.get_signatures()
        assert shown.to_string().startswith("Linear(in_features: ") and shown.to_string().endswith("=True)")


def test_rules_see_buffers_and_callers_see_tensors() -> None:
    @op
    def typed_copy(run: Run, x: Buffer, times: int = 1) -> Result[int]:
        """Copy."""
        return run(copy, x), times

    @typed_copy.vjp  # type: ignore[arg-type]  # the forward rule saves an int
    def _(run: Run, g: Buffer, saved: str, need: Need, times: int) -> Cotangents:
        return (g,)

    try:
        assert str(inspect.signature(typed_copy)) == "(x: 'TensorLike', times: 'int' = 1) -> 'Tensor'"
        assert get_type_hints(typed_copy) == {"x": TensorLike, "times": int, "return": Tensor}
        assert (typed_copy.__name__, typed_copy.__doc__) == ("typed_copy", "Copy.")
    finally:
        del OPS["typed_copy"]
