"""The site builds from the pages, without a warning: every link and anchor leads somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_found_and_nothing_is_loaded_from_elsewhere(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if page.name != "README" and not (site / page / "index.html").is_file()} == set()
    first = (site / "index.html").read_text()
    assert "I have a slow training script" in first
    assert re.findall(r'<(?:script|link rel="stylesheet")[^>]* (?:src|href)="https?:', first) == []
    found = {entry["location"] for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]}
    assert "concepts/account/#the-cut" in found


def test_options_and_keys_are_those_of_the_code(site):
    options = (site / "reference" / "options" / "index.html").read_text()
    assert "<code>--predict</code>" in options
    assert "rooflight devices show" in options
    keys = (site / "reference" / "json" / "index.html").read_text()
    assert '<h2 id="analysisdocument">' in keys
    assert "<code>account</code>" in keys


def test_measured_tables_are_there(site):
    for table in (ROOT / "benchmarks" / "results").rglob("*.csv"):
        assert (site / "data" / table.relative_to(ROOT / "benchmarks" / "results")).read_bytes() == table.read_bytes()
