"""Where a sweep runs: on this machine's devices, as a SLURM job, or on a Ray cluster."""
