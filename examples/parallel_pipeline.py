"""A pipeline: stages on several devices, busy with different parts of a batch. `python examples/parallel_pipeline.py`.

The schedule is a table, here 1F1B for two stages and four micro-batches; gradients are those of the whole batch.
"""

from parallel_common import X, Y, check, devices, make_model, stages, train

import ag

one = train(make_model(), X, Y, device="cpu")
used = devices(__doc__, "cpu,cpu:1")
layers = stages()
pipe = ag.Pipeline([ag.ag_sequential(layers[:2]), ag.ag_sequential(layers[2:])], used[:2], micro_batches=4)
print(pipe.table())
optimizer = ag.optimizer_adam(pipe.parameters(), lr=1e-2)
several = []
for batch in (b for _ in range(15) for b in ag.ag_dataloader(X, Y, batch_size=64, shuffle=False)):
    several.append(pipe.step(batch.x, batch.y, ag.ag_mse_loss).item())
    optimizer.step()
    optimizer.zero_grad()
check(f"pipeline on {', '.join(pipe.devices)}", several, one)
