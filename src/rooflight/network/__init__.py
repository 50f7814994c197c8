"""Ranks, topology, and how long collectives take over links."""
