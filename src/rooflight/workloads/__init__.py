"""Things to run: a preset, a config.json or a function, made a zero-argument step and its model."""
