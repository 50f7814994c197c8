"""What touches hardware: clocks, timing, the environment and the calibration of roofs."""
