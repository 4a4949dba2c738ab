"""Training on several devices at once.  Sees tensors, host arrays and devices by name; never a backend's inside."""
