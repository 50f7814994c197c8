"""Records the ops of a running program as a session, and times them in a second pass."""
