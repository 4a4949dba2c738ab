"""Tensors, ops, the tape and capture: reverse-mode differentiation over the engine."""
