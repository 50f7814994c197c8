"""Times operators over sweeps of shapes, on this machine, SLURM or Ray. Nothing is lost, nothing is sampled twice."""
