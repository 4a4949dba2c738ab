"""What was measured on a kind of device: choices by name, in one JSON file per kind in the user's cache directory.

Later processes make the same choices without measuring anything.  The file says for which device, driver and kernels it
holds, and is begun anew when one of them is another.  Devices are told apart by their product's name, so that like
devices choose alike and add up in the same order, as dp_train promises.  Knows choices as names, and not what they
mean; `ag.engine.backends.vulkan.products.autotune` asks.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from threading import RLock

from ag.log import log

__all__ = ["Choices", "choices_of"]

_FORMAT = 1


class Choices:
    """The choices for one kind of device.

    Parameters
    ----------
    path : Path
    device, driver, kernels : str
        The product's name, the driver's version, and a hash of the kernels: what the choices hold for.

    Attributes
    ----------
    lock : RLock
        To be held from `get` to `keep`, so that two like devices of a process do not measure the same.
    """

    def __init__(self, path: Path, device: str, driver: str, kernels: str) -> None:
        self.lock = RLock()
        self._path = path
        self._holds_for = {"format": _FORMAT, "device": device, "driver": driver, "kernels": kernels}
        self._choices, fault = self._read()
        if fault:
            log.warning("%s %s; what it should hold is measured again.", path, fault)

    def get(self, name: str) -> str | None:
        """What was chosen, if anything was."""
        return self._choices.get(name)

    def keep(self, name: str, choice: str, possible: Collection[str]) -> str:
        """Add a choice and write the file; returns what holds, which another process may have chosen first."""
        self._choices |= self._read()[0]
        if self._choices.get(name) not in possible:
            self._choices[name] = choice
        content = json.dumps({**self._holds_for, "choices": self._choices}, indent=1, sort_keys=True) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False, encoding="utf-8") as file:
                file.write(content)
            os.replace(file.name, self._path)  # whoever reads sees the old file or the new one
        except OSError as error:
            log.warning("%s cannot be written (%s); what was measured ends with this process.", self._path, error)
        return self._choices[name]

    def _read(self) -> tuple[dict[str, str], str]:
        """The choices in the file, and what is wrong with it."""
        try:
            content = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {}, ""
        except (OSError, ValueError) as error:
            return {}, f"cannot be read ({error})"
        if not isinstance(content, dict) or not isinstance(choices := content.pop("choices", None), dict):
            return {}, "is no file of choices"
        changed = [name for name, value in self._holds_for.items() if content.get(name) != value]
        if changed or not all(isinstance(choice, str) for choice in choices.values()):
            return {}, f"was made for another {changed[0]}" if changed else "holds a choice that is no word"
        return choices, ""


@cache
def choices_of(device: str, driver: str, kernels: str) -> Choices:
    """The choices for a kind of device, the same object for all like devices of the process."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ag"
    name = re.sub(r"[^A-Za-z0-9.]+", "-", device).strip("-")
    return Choices(folder / f"{name or 'device'}.json", device, driver, kernels)
