"""What makes a session: a live program, a GPU that is not there, a profile; and the workloads that one can run."""
