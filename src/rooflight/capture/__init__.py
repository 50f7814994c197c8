"""Sources that write records: what runs inside `record`, and the second pass that times it."""
