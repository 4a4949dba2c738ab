"""Rows of the case table: more elementwise functions, max, concatenation, slicing."""

from __future__ import annotations

import math

import oracles
from rows import ONE, Row, away_from, every, positive

FUNCTIONS = [
    Row("ag_sqrt", oracles.each(math.sqrt), every(ONE), [positive]),
    Row("ag_abs", oracles.each(abs), every(ONE), [away_from(0)]),
]

ROWS: list[Row] = [*FUNCTIONS]
