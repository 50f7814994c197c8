"""Holds fitted models: experts by device, what is added to them, and the files they are kept in."""
