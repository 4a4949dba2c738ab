"""Turn a recording of launches into a program, by passes over a graph.

    pipeline      `record`, the only name that other rooms import, and `PASSES`, in order.
    ownership     Finds out who holds which memory.
    graph         Keeps who reads and writes it.
"""
