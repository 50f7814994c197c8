"""Reads measured tables from files, one module a format, and the timed ops of sessions. A format is known by its
columns, estimate-train-time's by the file's name.
"""

from rooflight.prediction.read.files import find, find_all, read, read_file
from rooflight.prediction.read.measured import device_called

__all__ = ["device_called", "find", "find_all", "read", "read_file"]
