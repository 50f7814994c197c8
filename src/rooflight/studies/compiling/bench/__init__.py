"""Measures targets eager and under torch.compile in fresh processes, compares their results, and predicts the gain."""
