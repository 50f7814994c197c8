"""Observes functions and modules that are called again and again, and compiles them where that pays."""
