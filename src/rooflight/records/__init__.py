"""Nouns: what was observed. This room imports no other."""
