"""The rounds of docs/guide/first_hour.md: each does the same as the one before, and finds what the page says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from test_shown_output import ROOT, refresh

import rooflight as rl

PAGE = ROOT / "docs" / "guide" / "first_hour.md"
ROUNDS = refresh.rounds(PAGE.read_text())


def names_of(text):
    names = {"__name__": "first_hour"}
    exec(compile(text, "train.py", "exec"), names)
    return names


def found_in(tmp_path, number):
    """What a round of 5 steps reports: the session and its JSON."""
    (tmp_path / "train.py").write_text(ROUNDS[number])
    words = ["run", "--save", "a.session", "--json", "a.json", "train.py", "--clips", "160"]
    subprocess.run([sys.executable, "-m", "rooflight", *words], cwd=tmp_path, check=True, capture_output=True)
    return rl.load(tmp_path / "a.session"), json.loads((tmp_path / "a.json").read_text())


def test_there_are_three_changes():
    assert len(ROUNDS) == 4
    assert "torch.compile(Namer())" in ROUNDS[3]


def test_each_round_does_the_same():
    before, frames, ops = (names_of(text) for text in ROUNDS[:3])
    clip = torch.randn(16_000)
    torch.testing.assert_close(frames["spectrogram"](clip), before["spectrogram"](clip), rtol=1e-4, atol=1e-3)
    slow, fast = frames["Namer"](), ops["Namer"]()
    fast.load_state_dict(slow.state_dict())
    x = torch.randn(4, 94, 64)
    torch.testing.assert_close(fast(x), slow(x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_loader_lies_between_steps_and_then_the_step_has_fewer_ops(tmp_path):
    first, found = found_in(tmp_path, 0)
    between = found["run"]["between"]
    assert max(between, key=lambda each: each["seconds"])["name"] == "loader"
    assert found["run"]["step"]["name"] == "AdamW.step"
    second, _ = found_in(tmp_path, 2)
    assert len(second) < len(first)
    names = {op.name for op in second.signatures}
    assert {"aten::native_layer_norm", "aten::scaled_dot_product_attention"} <= {
        name.replace("rooflight::", "aten::") for name in names
    }


@pytest.mark.slow
def test_the_compiled_round_is_answered_compiled(tmp_path):
    _, found = found_in(tmp_path, 3)
    assert found["run"]["exit_code"] == 0
