"""Rows of the case table: normalisation, embedding and attention, and the layers made of them."""

from __future__ import annotations

from rows import Row

ROWS: list[Row] = []
