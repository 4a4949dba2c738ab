"""Runs primitives on devices and compiles recordings; knows no tensor and no gradient.

Every room above imports it, from `ag.autograd` to `ag.tools`: of `ag.engine.compile` only `record`, of
`ag.engine.backends` nothing.
"""
