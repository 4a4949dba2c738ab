"""The library's version, and the name under which it is installed.  Knows nothing else; whatever tells users what to
install asks here, and pyproject.toml takes the version from here.
"""

__all__ = ["DISTRIBUTION", "__version__", "install_line"]

__version__ = "0.1.0"
DISTRIBUTION = "ag-autograd"  # as pyproject.toml names it: `ag` is another project of PyPI


def install_line(extra: str = "") -> str:
    """The command that installs the package, with an extra or without, as messages write it."""
    wanted = f"'{DISTRIBUTION}[{extra}]'" if extra else DISTRIBUTION
    return f"pip install {wanted}"
