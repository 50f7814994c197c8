"""Records from a live program: what runs inside ``record``, and the second pass that times it."""
