"""Check the docstrings of everything public: complete after numpydoc's rules, and with examples that run.
There is no list of exempt names.  Five of numpydoc's rules are off, for everything:

ES01, SA01  An extended summary or a See Also section that only fills space helps nobody.
PR07, RT03  "Tensor of shape (features, batch)" says what `x` or a result is; a sentence after it would repeat it.
SS05        This rule takes a plural such as "Gradients of …" for a verb.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numpydoc.validate import validate

import ag
from ag.autograd.op import Result, RowOrColumn, Run, op

OFF = {"ES01", "SA01", "PR07", "RT03", "SS05"}
# Classes under their own names are made by the library: they document attributes, and come without an example.
RESULT_OFF = {"PR01", "EX01"}

PUBLIC = sorted(n for n, x in vars(ag).items() if not n.startswith("_") and not inspect.ismodule(x))


def own_methods(name: str) -> list[str]:
    """Public methods and properties of a public class that this library wrote."""
    members = inspect.getmembers(vars(ag)[name]) if inspect.isclass(vars(ag)[name]) else []
    ours = {method for method, x in members if str(getattr(getattr(x, "fget", x), "__module__", "")).startswith("ag.")}
    return [f"{name}.{method}" for method in sorted(ours) if not method.startswith("_")]


METHODS = [method for name in PUBLIC for method in own_methods(name)]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring(name: str) -> None:
    public: Any = vars(ag)[name]
    off = OFF | RESULT_OFF if inspect.isclass(public) and public.__name__ == name else OFF
    wrong = [f"{code}: {text}" for code, text in validate(f"ag.{name}")["errors"] if code not in off]
    assert not wrong, f"ag.{name}: {wrong}"
    lines = [line for line in (inspect.getdoc(public) or "").splitlines() if line.startswith((">>>", "..."))]
    assert len(lines) <= 9, f"ag.{name}: an example of {len(lines)} lines; make it short"


def test_ops_get_what_their_docstrings_leave_out() -> None:
    @op
    def plus(run: Run, A: RowOrColumn, B: RowOrColumn, much: int = 1, keepdim: bool = False) -> Result[None]:
        """Plus.

        Parameters
        ----------
        much : int, optional
            How much.

        >>> 1 + 1
        2
        """
        raise NotImplementedError

    shown = (plus.__doc__ or "").partition("Plus.\n\nParameters\n----------\n")[2].splitlines()
    assert shown[0] == "A, B : Tensor, array_like or float, of shapes that broadcast"
    assert shown[1:5] == ["much : int, optional", "    How much.", "keepdim : bool, optional",
                          "    Keep these axes with size 1."]
    assert shown[5:] == ["", "Returns", "-------", "Tensor without these axes", "", "Examples", "--------", ">>> 1 + 1",
                         "2"]


def test_methods_have_docstrings() -> None:
    for name in METHODS:
        owner, method = name.split(".")
        text = inspect.getdoc(getattr(vars(ag)[owner], method))
        assert text, f"ag.{name} has no docstring"
        assert text[0].isupper() or text[0] == "`", f"ag.{name}: {text!r} should begin with a capital"


EXAMPLES = """
import doctest, ag
finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
for name, x in list(vars(ag).items()):
    if not name.startswith("_") and getattr(x, "__doc__", None):
        for test in finder.find(x, name, module=False, globs={"ag": ag}):
            runner.run(test)
print(runner.summarize(verbose=False))
raise SystemExit(1 if runner.failures or not runner.tries else 0)
"""


OTHERS = EXAMPLES.replace("list(vars(ag).items())", "public_names()").replace(
    'if not name.startswith("_") and', 'if "." in name and callable(x) and').replace(
    "import doctest", "import sys; sys.path.insert(0, 'tools')\nfrom reference import public_names\nimport doctest")


@pytest.mark.parametrize("code", [EXAMPLES, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["ag", "namespaces"])
def test_examples_run(code: str) -> None:
    # in a process of their own: one of them shuts all devices down
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=Path(__file__).parents[2],
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
