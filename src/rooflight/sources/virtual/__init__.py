"""A CUDA device that is not there: a script runs on fake tensors, in a process of its own, and one step is recorded."""
