"""Times of work that was not measured: measured tables, what is wrong with them, what is learned from them."""
