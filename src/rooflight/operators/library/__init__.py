"""The operators that can be sampled, one file each; each registers itself when it is imported."""
