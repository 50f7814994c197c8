"""Each architecture of transformers that builds without hardware, and a model of each family of timm, are recorded,
covered whole, and have their bounds in order. ``make slow`` installs timm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TIMM = Path(sys.prefix) / "timm"
PARTS = 16  # each within the time after which a test counts as hanging
REFUSED = tomllib.loads((TESTS / "models" / "refused_architectures.toml").read_text())

pytestmark = pytest.mark.slow


def outcomes(library: str, part: int, parts: int) -> dict[str, dict[str, str]]:
    paths = [*sys.path, str(TIMM)] if library == "timm" else sys.path
    command = [sys.executable, str(TESTS / "architectures.py"), library, str(part), str(parts)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return {found["name"]: found for found in map(json.loads, run.stdout.splitlines())}


@pytest.mark.parametrize("part", range(PARTS))
def test_architectures_of_transformers(part, capfd):
    with capfd.disabled():  # it shows how far it is
        found = outcomes("transformers", part, PARTS)
    assert len(found) > 40
    assert {name: one["wrong"] for name, one in found.items() if one["wrong"]} == {}
    # a part of a model, such as its vision tower, has a config and no model of its own
    refused = {name for name, one in found.items() if one["refused"] and "has no model for" not in one["refused"]}
    listed = {name for names in REFUSED.values() for name in names}
    assert refused - listed == set(), {name: found[name]["refused"] for name in refused - listed}
    assert listed & set(found) - refused == set(), "take them off the list"


@pytest.mark.skipif(not TIMM.is_dir(), reason="timm is not installed: make slow does it")
def test_families_of_timm(capfd):
    with capfd.disabled():
        found = outcomes("timm", 0, 1)
    assert len(found) > 90
    assert {name: one for name, one in found.items() if one["wrong"] or one["refused"]} == {}
