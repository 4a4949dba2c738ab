"""The nodes of graphics cards in /dev: does Linux know a card, and may this user use it?

A driver passes over a card whose node it may not open, so a missing permission looks like a missing card.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PATTERNS = ("dri/renderD*", "nvidia[0-9]*")  # of all drivers in Linux itself, and of NVIDIA's own


def card_nodes(dev: Path = Path("/dev")) -> list[str]:
    """Return a sentence for each node of a card, on what is in the way of using it; on Linux at least one."""
    if sys.platform != "linux":
        return []
    nodes = [node for pattern in _PATTERNS for node in sorted(dev.glob(pattern))]
    if not nodes:
        return [f"There is no {dev}/{_PATTERNS[0]}: Linux drives no graphics card here; in a container the card must "
                f"be handed in (docker run --device /dev/dri)."]
    return [_said(node) for node in nodes]


def _said(node: Path) -> str:
    if os.access(node, os.R_OK | os.W_OK):
        return f"{node} is there and you may use it; if no device of the table is that card, install the card's driver."
    from grp import getgrgid, getgrnam  # of POSIX systems
    from pwd import getpwuid

    found = node.stat()
    try:
        group, user = getgrgid(found.st_gid).gr_name, getpwuid(os.getuid()).pw_name
    except KeyError:  # a container has numbers without names
        return (f"{node} is there and you may not use it: it belongs to group {found.st_gid}, which user {os.getuid()} "
                f"is not in; run with that group (docker run --group-add {found.st_gid}).")
    if found.st_mode & 0o060 != 0o060:
        return f"{node} is there and you may not use it, nor may its group {group}; an administrator must allow it."
    if user in getgrnam(group).gr_mem and found.st_gid not in os.getgroups():
        return f"{node} is there and you may use it, as a member of group {group}, after you have logged in again."
    return (f"{node} is there and you may not use it, as you are not in group {group}: sudo usermod -aG {group} "
            f"{user}, and log in again.")
