"""Pipeline times data parallelism: every stage has replicas. Run it as `python examples/parallel_pipeline_data.py`."""

from parallel_common import X, Y, check, devices, make_model, stages, train

import ag

one = train(make_model(), X, Y, device="cpu")
used = devices(__doc__, "cpu,cpu:1,cpu:2,cpu:3")
layers, half = stages(), len(used) // 2
first, second = ag.ag_sequential(layers[:2]).to(used[0]), ag.ag_sequential(layers[2:]).to(used[half])
pipe = ag.Pipeline([ag.DataParallel(first, used[:half]), ag.DataParallel(second, used[half:])], micro_batches=2)
optimizer = ag.optimizer_adam(pipe.parameters(), lr=1e-2)
several = []
for batch in (b for _ in range(15) for b in ag.ag_dataloader(X, Y, batch_size=64, shuffle=False)):
    several.append(pipe.step(batch.x, batch.y, ag.ag_mse_loss).item())
    optimizer.step()
    optimizer.zero_grad()
check(f"stages on {', '.join(used[:half])} and on {', '.join(used[half:])}", several, one)
