"""Rooflight: how far a PyTorch program is from the speed of light, why, and what to do about it."""
