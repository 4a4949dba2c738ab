"""Rows of the case table: convolution, pooling and the layers made of them."""

from __future__ import annotations

from rows import Row

ROWS: list[Row] = []
