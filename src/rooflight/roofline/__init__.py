"""Bounds ops, fused regions and whole programs on a device, and sums the bounds up."""
