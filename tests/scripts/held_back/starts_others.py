"""Starts another script twice as a process of its own, and passes on what it prints; it has no torch itself."""

import subprocess
import sys

for width in ("8", "24"):
    code = "import runpy, sys; v = runpy.run_path('experiment.py', run_name='__main__'); print(v['loss'].item())"
    done = subprocess.run([sys.executable, "-c", code, width], capture_output=True, text=True, check=True)
    print(width, done.stdout.strip(), repr(done.stderr))
