"""One file a family of ops; each file registers its formulas when imported."""
