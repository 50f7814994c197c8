"""Tracking as a callback of a training framework; each module imports its framework, this one imports none."""
