"""Ctrl-C, which a terminal sends to every process of a fit, ends its workers without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import time
from rooflight.prediction.fit.fitting import workers
with workers(1e9, True) as run:
    jobs = run(time.sleep, [400.0, 400.0])
    print("started", flush=True)
    list(jobs)
"""


@pytest.mark.parametrize("after_s", [0.1, 1.5], ids=["while they import", "at work"])
def test_workers_end_at_ctrl_c(after_s):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert errors.count(b"Traceback") == 1  # of the program itself, which catches nothing
