"""Backends: a folder per family of devices, which `ag.engine.registry` finds by its name and imports when one is used.

The package of a folder registers the family; nothing else in `ag` names it.
"""
