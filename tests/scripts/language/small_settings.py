"""Settings that ``configurator.py`` executes."""

block_size = 24
learning_rate = 2e-3
