"""Runs tasks on this machine, on SLURM or on Ray: submits them, yields results as they arrive, cancels on Ctrl-C."""
