"""The library's version, which pyproject.toml takes from here, and the name under which it is installed."""

__version__ = "0.1.0"
DISTRIBUTION = "ag-autograd"  # as pyproject.toml names it: `ag` is another project of PyPI


def install_line(extra: str = "") -> str:
    """Return the command that installs the package, with an extra or without."""
    wanted = f"'{DISTRIBUTION}[{extra}]'" if extra else DISTRIBUTION
    return f"pip install {wanted}"
