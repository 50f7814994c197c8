"""The operators that can be sampled and predicted, a family in each file; they register when it is imported."""
