"""``rooflight analyze rank0.session rank1.session``."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import op, spec
from sessions import Call, session_of

X = spec((1000,))
SUM = op("c10d::allreduce_", {"tensors": [X]}, [X], group_size=2)
DEVICE = ("--device", "H100-SXM5-80GB")


def saved(folder: Path, name: str, **environment: str) -> str:
    return str(session_of([Call(op=SUM)], storage_bytes=[4000], environment=environment).save(folder / name))


@pytest.fixture
def ranks(tmp_path: Path) -> list[str]:
    return [saved(tmp_path, f"rank{rank}.session", rank=str(rank), world_size="2") for rank in range(2)]


def test_several_sessions_are_one_report_in_every_format(ranks, tmp_path, ok, as_json):
    out = ok("analyze", *ranks, *DEVICE, "--markdown", tmp_path / "report.md")
    assert "2 ranks" in out
    assert "Spread over ranks" in out
    assert "## Ranks" in (tmp_path / "report.md").read_text()
    data = as_json("analyze", *ranks, *DEVICE)
    assert data["schema"] == "rooflight.ranks/1"
    assert [one["rank"] for one in data["ranks"]] == [0, 1]


def test_a_missing_rank_is_a_note(tmp_path, ok):
    known = [saved(tmp_path, f"r{rank}", rank=str(rank), world_size="3") for rank in (0, 2)]
    assert "No session of rank 1: it may have died" in ok("analyze", *known, *DEVICE)
