"""Loading data in batches."""
