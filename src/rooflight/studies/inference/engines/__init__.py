"""Hooks in models and engines, which open buckets around their parts, and the mappings of known engines."""
