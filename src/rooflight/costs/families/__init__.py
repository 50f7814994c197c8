"""Formulas of costs, a family of ops in each file; they register when the file is imported."""
