"""Model parallelism: layers on several devices, for models too large for one. `python examples/parallel_model.py`.

Here each device may hold three quarters of what the model needs, and the layers are placed by what they need.
"""

from parallel_common import X, Y, check, devices, make_model, stages, train

import ag

one = train(make_model(), X, Y, device="cpu")
used = devices(__doc__, "cpu,cpu:1")
layers = stages()
needed = sum(16 * p.size for layer in layers for p in layer.parameters().values())  # value, gradient, Adam's two
model = ag.ModelParallel(layers, "auto", used, budgets=dict.fromkeys(used, needed * 3 // 4))
print(f"{needed:,} bytes needed, {needed * 3 // 4:,} allowed on each device; layers are on {', '.join(model.devices)}")
several = train(model, X, Y, model.devices[-1])  # results and targets are where the last layer is
check("model parallel", several, one)
