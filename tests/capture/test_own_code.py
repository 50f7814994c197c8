"""Files as reports name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooflight.sources.capture import own_code
from rooflight.sources.capture.own_code import shown


def test_two_files_of_one_name_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_code, "_HERE", f"{tmp_path}/")
    assert shown(str(tmp_path / "train.py")) == "train.py"
    assert shown(str(tmp_path / "data" / "utils.py")) == "data/utils.py"
    assert shown(str(tmp_path / "model" / "utils.py")) == "model/utils.py"
    assert shown("/elsewhere/utils.py") == "elsewhere/utils.py"


def test_a_folder_that_is_gone_leaves_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(own_code, "_HERE", own_code._working_folder())
    assert shown(str(gone / "train.py")) == "gone/train.py"
