"""``rooflight analyze rank0.session rank1.session``."""

from __future__ import annotations

import json
from functools import partial
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
def analyze(run):
    return partial(run, "analyze")


@pytest.fixture
def ranks(tmp_path: Path) -> list[str]:
    return [saved(tmp_path, f"rank{rank}.session", rank=str(rank), world_size="2") for rank in range(2)]


def test_several_sessions_are_one_report_in_every_format(ranks, tmp_path, analyze):
    code, out, _ = analyze(*ranks, *DEVICE)
    assert code == 0
    assert "2 ranks" in out
    assert "Spread over ranks" in out
    code, out, _ = analyze(*ranks, *DEVICE, "--json", "-")
    data = json.loads(out)
    assert data["schema"] == "rooflight.ranks/1"
    assert [one["rank"] for one in data["ranks"]] == [0, 1]
    code, _, _ = analyze(*ranks, *DEVICE, "--markdown", str(tmp_path / "report.md"))
    assert "## Ranks" in (tmp_path / "report.md").read_text()


def test_mistakes_are_one_line(ranks, tmp_path, analyze):
    other = saved(tmp_path, "other.session", rank="1", world_size="4")
    alone = saved(tmp_path, "alone.session")
    for arguments, message in (
        ([ranks[0], ranks[0]], "rank0.session and rank0.session are both rank 0: give each rank's session once"),
        ([ranks[0], other], "rank0.session is of 2 ranks, other.session of 4: these are different runs"),
        (
            [ranks[0], "gpt2"],
            "gpt2 is no saved session and no trace: several targets are those of one run, one per rank",
        ),
        ([ranks[0], alone], "alone.session has no rank: record it after torch.distributed.init_process_group"),
        ([*ranks, "--mode", "train"], "--mode: saved sessions cannot run with other options"),
        (
            [*ranks, "--save", str(tmp_path / "x")],
            "--save: a file has one session, and each rank has its own: save them one by one",
        ),
        ([*ranks, "--measure"], "--measure: no effect, saved sessions cannot run again"),
    ):
        code, _, err = analyze(*arguments, *DEVICE)
        assert code == 2
        assert message in err
        assert len(err.strip().splitlines()) == 1


def test_a_missing_rank_is_a_note(tmp_path, analyze):
    known = [saved(tmp_path, f"r{rank}", rank=str(rank), world_size="3") for rank in (0, 2)]
    code, out, _ = analyze(*known, *DEVICE)
    assert code == 0
    assert "No session of rank 1: it may have died" in out
