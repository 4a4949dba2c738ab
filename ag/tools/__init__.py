"""Diagnostics: which devices there are, and whether they work; `launcher` starts ranks."""
