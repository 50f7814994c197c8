"""Finds rows of measured tables that cannot be true, or are unlike the rows around them."""
