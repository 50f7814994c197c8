"""Reads trace files: finds them, and puts their events into columns, whatever profiler wrote them."""
