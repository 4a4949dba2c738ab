"""The arguments of ``python -m ag launch``.

Knows no more than that, so it is loaded wherever the command line is.  `ag.__main__` calls it.
"""

from __future__ import annotations

import argparse

__all__ = ["add_arguments"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("-n", dest="ranks", type=int, metavar="N", help="ranks (at most, where hosts are named)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="a:2,b:2", help="hosts, and how many ranks each may have; default: this one")
    where.add_argument("--discover", metavar="./hosts.sh", help="a script that prints such hosts, one in a line; the "
                       "job grows when it lists more")
    parser.add_argument("--min-ranks", type=int, default=0, metavar="K", help="go on with K ranks, also where half of "
                        "the hosts or more do not answer")
    parser.add_argument("--max-restarts", type=int, default=3, metavar="R", help="how often a job that was lost is "
                        "started again (default: 3)")
    parser.add_argument("script", help="train.py, as for python")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
