"""Diagnostics: what devices there are, and whether they work."""
