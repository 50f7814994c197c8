"""Runs another script twice by runpy, with other words, as a launcher of experiments does."""

import pathlib
import runpy
import sys

for width in ("8", "24"):
    sys.argv = ["experiment.py", width]
    found = runpy.run_path(str(pathlib.Path(__file__).with_name("experiment.py")), run_name="__main__")
    print(width, found["__name__"], repr(found["loss"].item()))
