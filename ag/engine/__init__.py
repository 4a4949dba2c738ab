"""Runs primitives on devices and compiles recordings; knows no tensor and no gradient."""
