"""Operators that one can sample and predict by name: their sizes and their work. torch is handed in."""
