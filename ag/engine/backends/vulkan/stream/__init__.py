"""The command stream of a device: commands that are recorded, submitted together and waited for.

    commands         a dispatch, a copy, a sequence of them, a batch
    hazards          whether a barrier is needed before the next one
    cost             what they cost, roughly, and how much goes into one submission
    recorder         batches, in order: what was recorded, what was started, what was waited for
    transfer_queue   uploads beside all that, where a card has a queue for copies
    timestamps       the device's clock, and sequences that note it

Knows addresses, and no primitive; the Vulkan backend and `transfers` use it.
"""
