"""Makes signatures of the ops in a trace, from all that it shows of their calls."""
