"""``docs/reference/pages_claims.csv``: all that it names exists, and claims that no other test holds hold."""

from __future__ import annotations

import csv
import importlib
import shlex
from pathlib import Path

import pytest
import torch
import typer

import rooflight as rl
from rooflight.cli.main import app

ROOT = Path(__file__).parents[2]
ROWS = list(csv.DictReader((ROOT / "docs" / "reference" / "pages_claims.csv").read_text().splitlines()))
TREE = typer.main.get_command(app)


def missing(named: str) -> str:
    """Why a command, an attribute or a file that a row names is not there; empty if it is."""
    if named.startswith("rooflight "):
        _, verb, *words = shlex.split(named)
        command = TREE.commands.get(verb)
        while command is not None and words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        if command is None:
            return f"no command {verb}"
        try:
            command.make_context(verb, words, resilient_parsing=False)
        except Exception as error:  # whatever its library refuses words with
            return str(error) or type(error).__name__
        return ""
    if named.startswith("rooflight."):
        home, _, name = named.rpartition(".")
        try:
            return "" if hasattr(importlib.import_module(home), name) or importlib.import_module(named) else "nothing"
        except ImportError as error:
            return str(error)
    return "" if (ROOT / named).exists() else "no such file"


def test_every_claim_has_a_row_whose_command_or_name_exists():
    assert len(ROWS) > 130
    assert [row for row in ROWS if len(row) != 4 or not all(row.values())] == []
    assert {row["here"]: why for row in ROWS if (why := missing(row["here"]))} == {}


@pytest.mark.parametrize(
    "named", ["rooflight analize gpt2", "rooflight analyze --sdtep x", "rooflight.studies.compiling.no", "tests/no.py"]
)
def test_what_is_missing_is_seen(named):
    assert missing(named)


def analysis_of(function, *inputs) -> rl.Analysis:
    with rl.record() as recording:
        function(*inputs)
    return rl.analyze(recording.session, "A100-SXM4-80GB")


def test_pointwise_ops_are_memory_bound_and_a_fused_pair_takes_as_long_as_one():
    x = torch.empty(1 << 26, device="meta")  # more than a cache holds
    one, two, line = (analysis_of(each, x) for each in (torch.cos, lambda x: x.cos().cos(), lambda x: x * 2 + 1))
    assert one.bounds[0].limiter == "memory"
    assert one.program.fused_bound_s == two.program.fused_bound_s == line.program.fused_bound_s
    for each in (two, line):
        assert each.totals.op_bound_s == 2 * one.totals.op_bound_s
        # read, write, read and write; fused, read and write
        assert (each.totals.bytes_read + each.totals.bytes_written, each.program.fused_bytes) == (
            4 * x.nbytes,
            2 * x.nbytes,
        )


def test_cross_entropy_is_two_ops():
    analysis = analysis_of(torch.nn.functional.cross_entropy, torch.randn(8, 10), torch.arange(8))
    assert [op.name for op in analysis.session.signatures] == ["aten::_log_softmax", "aten::nll_loss_forward"]
