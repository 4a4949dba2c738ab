"""Tensors, ops, the tape, capture: reverse-mode differentiation over the engine.

Knows no layer and no optimizer; the ops themselves are in `ag.ops`.  Every room above imports it: `ag.ops`, `ag.nn`,
`ag.optim`, `ag.data`, `ag.io`, `ag.parallel`, `ag.training` and `ag.tools`.
"""
