"""Nouns: what was observed, estimated and reported. This room imports no other."""
