"""Record commands of a device, submit them together, and wait for them."""
