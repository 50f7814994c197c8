"""Touches the hardware at hand: clocks, timing, the environment, calibration of roofs."""
