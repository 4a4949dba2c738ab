"""Backends: each runs primitives on one kind of device.  `ag.engine.device` imports them by name, and only when
used."""
