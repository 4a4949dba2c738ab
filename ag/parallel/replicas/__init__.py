"""One model on several devices at once: scatter, replicate, gather, and optimizers over replicas."""
