"""Rows of the case table: more elementwise functions, max, concatenation, slicing."""

from __future__ import annotations

from rows import Row

ROWS: list[Row] = []
