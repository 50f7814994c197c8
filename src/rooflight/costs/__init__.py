"""Computes what an op must do: FLOPs by precision, and bytes."""
