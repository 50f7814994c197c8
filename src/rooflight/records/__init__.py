"""Data types shared by all packages: what was observed, predicted and reported. Imports no other package."""
