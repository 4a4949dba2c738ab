"""Run primitives on devices, and compile recordings of launches.

Rooms above import `record` of `ag.engine.compile`, and nothing of `ag.engine.backends`.
"""
