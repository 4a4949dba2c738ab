"""The compiler: turns a recording of launches into a program, by passes over a graph.

    the door                       pipeline: `record`, and `PASSES`, the passes in the order in which they run
    before the first pass          ownership: who holds which memory      graph: who reads and writes it
    passes                         fold_scaling  copy_elimination  dead_code  rematerialize  fuse_elementwise
                                   fuse_epilogues  memory_plan
    what both fusions build        chain

Knows no device, but what its `Target` wants, and no primitive by name.
"""
