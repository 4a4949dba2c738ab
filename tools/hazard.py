"""A deliberate data race, to show that the synchronization leg would see one.

Copies into the same 64 bytes twice without a barrier between, through each of two instances on every device:
the validation layer must report one write-after-write for each. Prints how many there are. Run by
tools/test.sh; of ag it knows only where the binding is.
"""

import numpy as np

from ag.engine.backends.vulkan.kp import kompute

kp = kompute()

managers = [kp.Manager(device) for device in range(len(kp.Manager().list_devices())) for _ in range(2)]
for manager in managers:
    source = manager.tensor(np.ones(16, np.float32))
    target = manager.tensor(np.zeros(16, np.float32))
    sequence = manager.sequence()
    for _ in range(2):
        sequence.record(kp.OpCopy(source, target, [(0, 0, 64)], barrier=False))
    sequence.eval()
print(len(managers))
