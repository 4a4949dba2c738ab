"""What primitives compute: one numpy function and one shader per name."""
