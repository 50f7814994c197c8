"""The operators, a family in each file; they register when the package is imported."""
