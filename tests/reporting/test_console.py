"""How wide a report is, what stands first in it, and what gives way where it is too wide."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace

import pytest
from builders import Nothing
from rich.console import Console

from rooflight.records.report import Column, Report, Table
from rooflight.reporting.console import print_report
from rooflight.reporting.layout import layout

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


def test_a_pipe_is_at_most_160_columns_wide_and_has_every_text_in_full(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table(id="t", title="Names", columns=(Column("module"), Column("n")), rows=((LONG, 1), (2 * LONG, 2)))
    text = printed(replace(wide_report(), tables=(*wide_report().tables, replace(table, id="u"))))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 160
    assert LONG in text
    assert "…" not in text
    assert "number 4" in text
    note = [line for line in lines if "note" in line]
    assert len(note) > 1
    assert max(map(len, note)) <= 132
    assert not any(line.endswith(" ") for line in lines)


def test_a_terminal_shows_the_conclusion_first_and_remedies_in_full():
    columns = (Column("gap"), Column("time", "s"), Column("so far", "s"), Column("remedy", wraps=True))
    remedy = "torch.compile, fused kernels and optimizers, and whatever else there is to say of a gap"
    table = Table(
        id="t", title="T", columns=columns, rows=(("data movement that fusion would save", 1.0, 2.0, remedy),)
    )
    report = Report(title="T", tables=(table,), data=Nothing(), conclusion="It is slow.", facts=(("device", "one"),))
    lines = printed(report, terminal=True, width=80).splitlines()
    assert [line.strip() for line in lines[:3]] == ["T", "", "It is slow."]
    assert max(map(len, lines)) <= 80
    words = [word for line in lines for word in line.split()]
    assert set(remedy.split()) <= set(words)
    assert {"1.00", "2.00"} <= set(words)


def test_optional_columns_give_way_before_texts_become_unreadable():
    columns = (Column("op"), Column("bytes", "B"), Column("calls"), Column("limiter"))
    table = Table(id="t", title="T", columns=columns, rows=(("scaled_dot_product_attention", 1, 2, "compute"),))
    (shown,) = layout(replace(table, optional=("calls", "bytes")), 40)
    assert [(column.index, column.width) for column in shown] == [(0, 28), (3, 7)]
    assert [column.index for column in layout(replace(table, optional=("calls", "bytes")), 45)[0]] == [0, 1, 3]
    assert [column.width for column in layout(table, 40)[0]] == [
        16,
        6,
        5,
        7,
    ]  # the name takes two lines


def test_numbers_that_do_not_fit_a_line_come_in_parts():
    columns = (Column("batch"), *(Column(f"figure{number}") for number in range(12)))
    table = Table(id="t", title="T", columns=columns, rows=(("one", *range(10**6, 10**6 + 12)),))
    lines = printed(Report(title="T", tables=(table,), data=Nothing()), terminal=True, width=60).splitlines()
    assert max(map(len, lines)) <= 60
    text = " ".join(lines)
    assert all(f"{number:,}" in text for number in range(10**6, 10**6 + 12))
    assert text.count("batch") == text.count("one") == 3


def test_a_brief_report_is_what_a_terminal_shows():
    brief = Report(title="Brief", data=Nothing())
    assert printed(Report(title="Whole", data=Nothing(), brief=brief)).startswith("Brief")


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
