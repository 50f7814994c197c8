"""Makes a zero-argument step and its model of a preset, a config.json, a problem file or a function."""
