"""Speed of light inside a training loop."""
