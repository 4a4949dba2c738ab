"""ONNX files: what a model computes, written down as a graph of ONNX operators, and the weights in such a file.

    model(x) three times, listening     trace         ops with operands and numbers, for batches of three sizes
    what they have in common            program       one list of ops, with sizes that follow the batch
    each op as ONNX operators           operators     nodes of a graph, by one table
    transposes that cancel              layout
    the file                            export
"""
