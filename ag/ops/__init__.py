"""Public operations, one file per family.  Importing a family registers its primitives and its ops."""
