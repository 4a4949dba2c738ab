"""Pipeline schedules: which stage works on which micro-batch when, as tables, without any tensor.

Every forward (F) and backward (B) pass takes one tick.  A column is a tick of two stages with three micro-batches:

    gpipe    stage 0  F0 F1 F2  .  . B2 B1 B0        1f1b     stage 0  F0 F1  . B0 F2 B1  . B2
             stage 1   . F0 F1 F2 B2 B1 B0  .                 stage 1   . F0 B0 F1 B1 F2 B2  .
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["SCHEDULES", "Table", "Work", "gpipe", "one_forward_one_backward", "shown", "timetable"]


class Work(NamedTuple):
    """A pass of one micro-batch through one stage: forward, or backward."""

    backward: bool
    micro: int

    def __str__(self) -> str:
        return f"{'B' if self.backward else 'F'}{self.micro}"


Orders = list[list[Work]]  # per stage
Table = list[list[Work | None]]  # per tick, per stage


def gpipe(stages: int, micros: int) -> Orders:
    """All forward passes, then all backward passes, the last micro-batch first.

    A stage holds the results of every micro-batch.
    """
    forward = [Work(False, m) for m in range(micros)]
    backward = [Work(True, m) for m in reversed(range(micros))]
    return [forward + backward for _ in range(stages)]


def one_forward_one_backward(stages: int, micros: int) -> Orders:
    """As few forward passes ahead as keep every stage busy, then one backward, one forward, and so on (1F1B).

    A stage holds the results of at most as many micro-batches as there are stages behind it and itself.
    """
    orders = []
    for stage in range(stages):
        ahead = min(micros, stages - stage)
        order = [Work(False, m) for m in range(ahead)]
        for m in range(micros):
            order.append(Work(True, m))
            if ahead + m < micros:
                order.append(Work(False, ahead + m))
        orders.append(order)
    return orders


SCHEDULES: dict[str, Callable[[int, int], Orders]] = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def timetable(orders: Orders) -> Table:
    """Return the timetable: one row per tick, one entry per stage; no stage waits longer than it must.

    A forward pass needs the stage before to be done with the micro-batch, a backward pass the stage after.  Both
    schedules take 2 * micro-batches + 2 * (stages - 1) ticks: filling and emptying the pipeline cannot be saved.

    Raises
    ------
    ValueError
        If the orders make stages wait for each other for ever.
    """
    stages, done = len(orders), [set[Work]() for _ in orders]
    waiting = [list(order) for order in orders]
    table: Table = []
    while any(waiting):
        tick: list[Work | None] = [None] * stages
        for stage, order in enumerate(waiting):
            if order and _is_ready(order[0], stage, done):
                tick[stage] = order.pop(0)
        if not any(tick):
            stuck = ", ".join(f"stage {s} for {order[0]}" for s, order in enumerate(waiting) if order)
            raise ValueError(f"timetable: the stages wait for each other, {stuck}; no order of work ends like this.")
        for stage, work in enumerate(tick):
            if work is not None:
                done[stage].add(work)
        table.append(tick)
    return table


def _is_ready(work: Work, stage: int, done: list[set[Work]]) -> bool:
    if not work.backward:
        return stage == 0 or work in done[stage - 1]
    behind = stage == len(done) - 1 or work in done[stage + 1]
    return behind and Work(False, work.micro) in done[stage]


def shown(table: Table) -> str:
    """The table as text: a row per stage, a column per tick."""
    cells = [[str(work or ".") for work in column] for column in zip(*table, strict=True)]
    width = max(len(cell) for row in cells for cell in row)
    return "\n".join(f"stage {s}  " + " ".join(cell.rjust(width) for cell in row) for s, row in enumerate(cells))
