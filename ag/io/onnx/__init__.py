"""ONNX files: what a model computes, written down as a graph of ONNX operators, and the weights in such a file.

Knows ops by one table, and nothing of how models are trained.  `ag.io.onnx_file` calls it to write a file,
`ag.io.weights` to read weights.

    model(x) three times, listening     trace         ops with operands and numbers, for batches of three sizes
    what they have in common            program       one list of ops, with sizes that follow the batch
    each op as ONNX operators           operators     nodes of a graph, by one table
    transposes that cancel              layout
    the file                            export
"""
