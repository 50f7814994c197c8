"""Predicts times of work that was not measured, from models learned from measured tables and traces."""
