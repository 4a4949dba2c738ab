"""Optimizers and gradient clipping."""
