"""Sessions read from traces that a test writes event by event."""

import os
from pathlib import Path

import pytest
from kineto_traces import write

import rooflight as rl

TRACES = Path(os.environ.get("ROOFLIGHT_DATA", "/nowhere")) / "traces"


@pytest.fixture
def read(tmp_path):
    """Reads a trace of these events: ``head`` are keys of the file, but for options of ``read_trace``."""

    def read(*events, model=None, capture=None, execution_trace=None, **head):
        path = write(tmp_path / "trace.json", list(events), **head)
        return rl.read_trace(path, capture, model=model, execution_trace=execution_trace)

    return read


@pytest.fixture
def shown():
    """The folder of real traces, which lies beside the project."""
    if not TRACES.is_dir():
        pytest.skip("ROOFLIGHT_DATA is not set")
    return TRACES
