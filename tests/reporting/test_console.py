"""How wide a report is: as wide as the terminal, and in a pipe as wide as what it says."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from builders import Nothing
from rich.console import Console

from rooflight.records.report import Column, Report, Table
from rooflight.reporting.console import print_report

LONG = "layers.0." + "block." * 20 + "attention"  # 138 characters


def wide_report() -> Report:
    columns = (Column("module"), *(Column(f"number {index}") for index in range(12)), Column("remark", wraps=True))
    row = (LONG, *[10**9] * 12, "words " * 40)
    table = Table(id="t", title="Wide", columns=columns, rows=(row,), optional=("number 3",))
    return Report(title="Wide", tables=(table,), notes=("note " * 100,), data=Nothing())


def printed(report: Report, *, terminal: bool = False, width: int | None = None) -> str:
    file = io.StringIO()
    print_report(report, Console(file=file, force_terminal=terminal, width=width, color_system=None))
    return file.getvalue()


def test_a_pipe_gets_every_column_and_every_name_in_full(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    text = printed(wide_report())
    assert LONG in text
    assert "number 3" in text
    assert "…" not in text
    note = [line for line in text.splitlines() if "note" in line]
    assert len(note) > 1
    assert max(map(len, note)) <= 132
    assert not any(line.endswith(" ") for line in text.splitlines())


@pytest.mark.parametrize("columns", ["60", "100", "200"])
def test_columns_is_obeyed_in_a_pipe(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    file = io.StringIO()
    table = Table(id="t", title="T", columns=(Column("name"), Column("n")), rows=((LONG, 1),))
    print_report(Report(title="T", tables=(table,), data=Nothing()), Console(file=file))
    assert max(map(len, file.getvalue().splitlines())) <= int(columns)


def test_a_terminal_is_not_overrun(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table(id="t", title="T", columns=(Column("name"), Column("n")), rows=((LONG, 1),))
    text = printed(Report(title="T", tables=(table,), data=Nothing()), terminal=True, width=80)
    assert max(map(len, text.splitlines())) <= 80


def test_a_closed_pipe_is_an_error_and_not_the_end_of_the_process():
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            if text:
                raise BrokenPipeError(32, "Broken pipe")
            return 0

    with pytest.raises(BrokenPipeError):
        print_report(wide_report(), Console(file=Closed()))


def test_the_first_report_leaves_the_random_numbers_of_a_program_alone():
    program = """
import random
from rooflight.records.report import Report
from rooflight.reporting.console import print_report
random.seed(0)
before = random.getstate()
print_report(Report(title="T", data=None))
assert random.getstate() == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
