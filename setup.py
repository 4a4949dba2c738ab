"""Run the steps of native_build.py beside those in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

here = Path(__file__).resolve().parent
# A build backend does not put them there.
sys.path[:0] = [str(here), str(here / "third_party" / "kp"), str(here / "tools")]
import native_build  # noqa: E402

setup(long_description=native_build.description(), long_description_content_type="text/markdown",
      ext_modules=native_build.extensions(), cmdclass=native_build.COMMANDS)
