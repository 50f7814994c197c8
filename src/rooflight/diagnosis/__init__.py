"""Diagnosis: the regime of a program, what costs it time, the evidence, the remedy, and what that would buy."""
