"""What `ag.autograd.capture` is made of: arguments, one recorded call, its trace, and the program made of it.

Knows no layer and no optimizer but by the attributes that they tell of (`ag.autograd.watched`).  `ag.autograd.capture`
calls it; tensors and ops tell whoever listens (`overheard`), which the ONNX export does.
"""
