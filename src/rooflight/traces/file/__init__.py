"""Reads files of traces: which are, their events in columns, whatever profiler wrote them."""
