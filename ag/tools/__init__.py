"""Diagnostics: what devices there are, and whether they work; `launcher`, which starts ranks.

Knows no training.  Users call it, through `ag` and on the command line (`ag.__main__`); no other room imports it.
"""
