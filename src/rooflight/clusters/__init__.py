"""Many machines: what SLURM and Ray are asked, and the roofs of every node of a cluster."""
