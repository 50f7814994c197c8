"""Times of operators that were not measured: measured tables, what is wrong with them, and what is learned."""
