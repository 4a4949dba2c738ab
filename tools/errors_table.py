"""The table of every error that `ag` raises, read from its `raise` statements: what raises it, its class, its message.

The documentation site has it as a page (tools/site_pages.py), and ``python tools/errors_table.py`` prints it.  It is
derived each time and kept nowhere, so that a new error needs no entry.  It reads source files and imports nothing of
`ag`; tests/docs/test_errors_page.py looks at what it finds.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
HEAD = """\
# Every error

What `ag` raises, module by module, with the message; names in braces stand for what is found when it happens.

| where | error | message |
|---|---|---|
"""


class Row(NamedTuple):
    """One `raise` statement: dotted module, class of the error, message with names in braces."""

    module: str
    error: str
    message: str


def message_of(node: ast.expr) -> str | None:
    """Text of a string or f-string, with the expressions of the latter in braces; None for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
                           for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (message_of(left) or f"{{{ast.unparse(left)}}}") + (message_of(right) or f"{{{ast.unparse(right)}}}")
        case ast.IfExp(body=body, orelse=other):
            return message_of(body) or message_of(other)
    return None


def rows() -> list[Row]:
    """Every error that is made where it is raised and has a message, by module and in the order of the file."""
    table = []
    for path in sorted((ROOT / "ag").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        raised = [node.exc for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Raise)]
        for call in sorted((x for x in raised if isinstance(x, ast.Call)), key=lambda x: x.lineno):
            message = message_of(call.args[0]) if call.args else None
            error = ast.unparse(call.func)
            # With the first a base class asks subclasses; the second makes its message when it is read.
            made_here = error[0].isupper() and error not in ("NotImplementedError", "MissingNameError")
            if message and made_here:
                table.append(Row(module, error, " ".join(message.split())))
    return table


def table() -> str:
    """The page."""
    lines = []
    for module, error, message in rows():
        escaped = message.replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| `{module}` | `{error}` | {escaped} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
