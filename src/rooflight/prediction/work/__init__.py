"""Bounds work on a device and turns it into the features that models see."""
