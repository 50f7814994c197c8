"""Being here puts this folder on the import path, so that every test can import ``builders``."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import tracked
from hypothesis import settings
from slurm_cluster import slurm_cluster

from rooflight.cli.main import main
from rooflight.costs import registry

# A property tries the same examples in every run, so that only a change of the code makes it fail; ROOFLIGHT_SEARCH=1
# (`make search`) tries others each time. A busy machine fails neither.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("search" if os.environ.get("ROOFLIGHT_SEARCH") == "1" else "same")


def pytest_configure(config):
    """No test sees the calibrations of whoever runs it: a device is then its datasheet, unless a test calibrates.

    Nor whether the tests were started in the background, where a shell ignores Ctrl-C for all that they start. And all
    see the same examples of properties, unless ROOFLIGHT_SEARCH is set.
    """
    settings.register_profile("same", derandomize=True, deadline=None)
    settings.register_profile("search", deadline=None, print_blob=True)
    settings.load_profile("search" if "ROOFLIGHT_SEARCH" in os.environ else "same")
    config.empty_cache = tempfile.mkdtemp(prefix="rooflight-tests-")
    os.environ["ROOFLIGHT_CACHE"] = config.empty_cache
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config):
    shutil.rmtree(config.empty_cache, ignore_errors=True)


@pytest.fixture(autouse=True)
def _nothing_stays():
    """A test that leaves this process changed fails, not the test after it."""
    before = _state()
    yield
    assert _state() == before
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)) == (signal.SIG_DFL, (0.0, 0.0))


def _state() -> dict[str, Any]:
    return {
        "folder": Path.cwd(),
        "words": sys.argv,
        "Ctrl-C": signal.getsignal(signal.SIGINT),
        "settings": {name: value for name, value in os.environ.items() if name.startswith("ROOFLIGHT_")},
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "log level": logging.getLogger().level,
    }


@pytest.fixture(scope="session")
def slurm_session():
    """The cluster of all tests of this process."""
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_session):
    """A SLURM cluster of two idle nodes on this machine; a test that asks for it is skipped where there is no SLURM."""
    slurm_session.wait_until_idle()
    return slurm_session


@pytest.fixture
def restored_formulas(monkeypatch):
    """What the test registers is forgotten after it."""
    registry.registered()  # loads our own, so that they are among what stays
    monkeypatch.setattr(registry, "_formulas", dict(registry._formulas))


@pytest.fixture
def run(monkeypatch, capsys):
    """The command in this process: a function of its words that returns its exit code, standard output and error."""

    def rooflight(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rooflight", *map(str, words)])
        code, before = 0, signal.getsignal(signal.SIGTERM)
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            signal.signal(signal.SIGTERM, before)
        out, err = capsys.readouterr()
        return code, out, err

    return rooflight


@pytest.fixture
def ok(run):
    """What the command prints, of a run that ends well."""

    def out(*words: str | Path) -> str:
        code, out, err = run(*words)
        assert code == 0, err
        return out

    return out


@pytest.fixture
def as_json(ok):
    """What the command prints as JSON."""
    return lambda *words: json.loads(ok(*words, "--json", "-"))


@pytest.fixture
def refused(run):
    """The one line with which the command refuses its words."""

    def line(*words: str | Path) -> str:
        code, out, err = run(*words)
        assert (code, out) == (2, ""), (out, err)
        assert err.startswith("rooflight: ")
        assert err.count("\n") == 1
        return err

    return line


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Models of a few thousand numbers: threads would spend the time waiting for each other."""
    with tracked.one_thread():
        yield


@pytest.fixture(scope="module")
def small_heap() -> Iterator[None]:
    """The recorder looks through all objects that the garbage collector knows: leave those of other tests out."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
