"""Memory of a step and of its script: what is alive, who holds it, and what an allocator makes of it."""
