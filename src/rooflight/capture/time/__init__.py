"""Times of a running program: ops by Kineto, modules by marks, buckets of a step by stamps."""
