"""Bounds: per operation and for the whole program, and their roll-ups."""
