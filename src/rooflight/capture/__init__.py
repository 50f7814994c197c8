"""Records of a live program, which ``record`` takes, and the second pass that times it."""
