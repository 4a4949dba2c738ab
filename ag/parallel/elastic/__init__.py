"""Training that is described in a file and outlives lost devices."""
