"""The tape lets go: of nodes, however deep the graph, and of device memory."""

from __future__ import annotations

import gc

import numpy as np

import ag
from ag.autograd.tape import Node
from ag.engine.device import backend_of

DEEP = 10_000


def deep_sum(x: ag.Tensor) -> ag.Tensor:
    """x + 1 + 1 + … : a graph far deeper than Python's stack."""
    with ag.with_grad_tape():
        y = x
        for _ in range(DEEP):
            y = y + 1.0
        return ag.ag_sum(y)


def nodes_alive() -> int:
    return sum(isinstance(x, Node) for x in gc.get_objects())


def test_a_deep_graph_neither_overflows_the_stack_nor_leaks() -> None:
    x = ag.ag_param([[1.0]])
    gc.collect()  # what earlier tests left in circles, so that it does not die in between
    before = nodes_alive()
    loss = deep_sum(x)
    assert nodes_alive() >= before + DEEP
    assert ag.backward(loss)[x].item() == 1
    del loss
    assert nodes_alive() == before


def test_a_deep_graph_can_be_dropped_without_backward() -> None:
    gc.collect()
    before = nodes_alive()
    loss = deep_sum(ag.ag_param([[1.0]]))
    assert loss.item() == DEEP + 1
    del loss
    assert nodes_alive() == before


def test_memory_returns_to_the_start(device: str) -> None:
    arena = backend_of(device).arena
    W, x = ag.ag_param(np.ones((64, 64))), ag.ag_tensor(np.ones((64, 64)))

    def step() -> None:
        with ag.with_grad_tape():
            loss = ag.ag_mean(ag.ag_tanh(ag.ag_matmul(W, x)) ** 2)
        ag.backward(loss)
        W.grad = None

    gc.disable()  # what is freed must be freed by reference counts, at once
    try:
        step()
        live = arena.stats().live
        for _ in range(3):
            step()
            assert arena.stats().live == live
    finally:
        gc.enable()


def test_backward_frees_what_was_saved(device: str) -> None:
    arena = backend_of(device).arena
    x = ag.ag_param(np.full((256, 256), 0.5))
    with ag.with_grad_tape():
        y = x
        for _ in range(10):
            y = ag.ag_tanh(y)
        loss = ag.ag_sum(y)
    del y
    held = arena.stats().live
    grads = ag.backward(loss)
    # ten saved outputs are gone; one gradient is there
    assert arena.stats().live <= held - 9 * x.size * 4
    assert grads[x].shape == x.shape
