"""Layers, one per file; `layer` is their base."""
