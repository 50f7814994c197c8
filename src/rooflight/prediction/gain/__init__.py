"""Predicts what torch.compile would bring to a recorded step, and cost."""
