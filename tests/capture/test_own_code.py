"""Files as reports name them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rooflight.sources.capture.own_code import shown


def test_two_files_of_one_name_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(str(tmp_path / "train.py")) == "train.py"
    assert shown(str(tmp_path / "data" / "utils.py")) == "data/utils.py"
    assert shown(str(tmp_path / "model" / "utils.py")) == "model/utils.py"
    assert shown("/elsewhere/utils.py") == "utils.py"


def test_a_folder_that_is_gone_leaves_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    os.rmdir(gone)  # noqa: PTH106 - the folder in which the test is
    assert shown(str(gone / "train.py")) == "train.py"
    monkeypatch.undo()
