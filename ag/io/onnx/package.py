"""The optional package onnx, loaded when it is needed.

Knows no graph; `ag.io.onnx.export` and `ag.io.onnx.initializers` call it.
"""

from __future__ import annotations

from ag.version import install_line

__all__ = ["onnx_package"]


def onnx_package(function: str) -> None:
    """Load the package, or say how to get it."""
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise ImportError(f"{function}: the package onnx cannot be loaded ({error}); {install_line('onnx')} installs "
                          f"it.") from error
