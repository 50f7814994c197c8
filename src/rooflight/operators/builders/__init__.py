"""What several operators share: a linear layer, attention, a collective."""
