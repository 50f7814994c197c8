"""Sampling: operators timed over sweeps of shapes, rows kept so that nothing is lost and nothing is sampled twice."""
