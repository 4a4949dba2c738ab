"""ZeRO: what Adam keeps of every parameter, shared out over the replicas. `python examples/parallel_zero.py`.

Stage 1 shares out the optimizer's state, 2 gradients, too, 3 parameters, too; the losses are the same.
"""

from parallel_common import X, Y, check, devices, make_model, train

import ag

one = train(make_model(), X, Y, device="cpu")
used = devices(__doc__, "cpu,cpu:1,cpu:2")
for stage in (1, 2, 3):
    zero = ag.ZeroOptimizer(make_model(), ag.optimizer_adam, used, stage=stage, lr=1e-2)
    several = []
    with ag.ag_device(used[0]):
        for batch in (b for _ in range(15) for b in ag.ag_dataloader(X, Y, batch_size=64, shuffle=False)):
            with ag.with_grad_tape():
                loss = ag.ag_mse_loss(zero.model(batch.x), batch.y)
            zero.step(ag.backward(loss))
            zero.zero_grad()
            several.append(loss.item())
    check(f"ZeRO-{stage} on {', '.join(used)}", several, one)
