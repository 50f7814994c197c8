"""Operators that one can sample and predict by name: their shapes and work. Names no library: torch is handed in."""
