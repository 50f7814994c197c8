"""A config of a model as a file."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def config_file(tmp_path):
    def write(values, name="config.json"):
        path = tmp_path / name
        path.write_text(values if isinstance(values, str) else json.dumps(values))
        return str(path)

    return write
