"""What a target is, made runnable: a zero-argument step and its model, from a preset, a config.json or a function."""
