"""Describes the operators that can be sampled and predicted by name: sizes, tensors and work. Imports no torch."""
