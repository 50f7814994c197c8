"""Fits models to measured tables and to the timed ops of sessions."""
