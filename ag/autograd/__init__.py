"""Tensors, ops, the tape, capture: reverse-mode differentiation over the engine."""
