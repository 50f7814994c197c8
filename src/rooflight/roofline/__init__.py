"""Bounds: of one op or of arrays of them, of fused regions and of the whole program; their roll-ups and reports."""
