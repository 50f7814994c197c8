"""Operators timed over sweeps of shapes: runner, store, executors. Nothing is lost, nothing is sampled twice."""
