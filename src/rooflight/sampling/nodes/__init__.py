"""Calibrates every node of a cluster, and compares their roofs."""
