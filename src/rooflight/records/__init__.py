"""Data types shared by all packages: what was observed, estimated and reported. Imports no other package."""
