"""Computes how long collectives take over links, from ranks and topology."""
