"""Tables as CSV: plain numbers under names with units, all rows, and no formula for a spreadsheet to run."""

from __future__ import annotations

import csv
from io import StringIO

import pytest
from builders import Nothing
from hypothesis import given
from hypothesis import strategies as st

from rooflight.records.quantity import Quantity
from rooflight.records.report import Column, Report, Table
from rooflight.records.visible import visible
from rooflight.reporting.csv import render_csv, table_csv

TABLE = Table(
    id="by_op",
    title="By op",
    columns=(
        Column("op"),
        Column("matrix", "FLOP"),
        Column("bytes", "B"),
        Column("measured step", "s"),
        Column("share", "%"),
        Column("alg bw", "B/s"),
    ),
    rows=(("mm", 2 * 8192**3, 1000, 1.25e-3, 0.5, None), ("add, then mul", 0, 10, 1e-9, None, 1e9)),
    top=1,
)


def parsed(text: str) -> list[list[str]]:
    return list(csv.reader(StringIO(text)))


def test_numbers_are_plain_under_names_with_units():
    assert table_csv(TABLE).splitlines() == [
        "op,matrix_flops,bytes,measured_step_s,share,alg_bw_bytes_per_s",
        "mm,1099511627776,1000,0.00125,0.5,",
        '"add, then mul",0,10,1e-09,,1000000000.0',  # also what --top leaves out
    ]


def test_figures_with_units_of_their_own_have_a_column_for_them():
    table = Table(
        id="figures",
        title="Figures",
        columns=(Column("figure"), Column("datasheet")),
        rows=(("peak", Quantity(989.4e12, "FLOP/s", "TFLOP/s")), ("latency", None), ("units", 132)),
    )
    assert parsed(table_csv(table)) == [
        ["figure", "datasheet", "datasheet_unit"],
        ["peak", "989400000000000.0", "FLOP/s"],
        ["latency", "", ""],
        ["units", "132", ""],
    ]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "  =1", "＝1"])
def test_names_are_no_formulas(name):
    table = Table(id="t", title="t", columns=(Column("op"), Column("error", "%")), rows=((name, -0.25),))
    rows = parsed(table_csv(table))
    assert rows[1] == [f"'{name}", "-0.25"]  # a negative number stays one


@pytest.mark.parametrize("name", ["\t=1", "\r=1", "\n=1", "\u200b=1"])
def test_what_cannot_be_seen_does_not_hide_a_formula(name):
    table = Table(id="t", title="t", columns=(Column("op"),), rows=((name,),))
    assert parsed(table_csv(table))[1] == [visible(name)]  # it begins with a backslash


@given(st.text())
def test_any_name_comes_back(name):
    table = Table(id="t", title="t", columns=(Column("op"), Column("calls")), rows=((name, 1),))
    ((_, _), (shown, count)) = parsed(table_csv(table))
    assert shown.removeprefix("'") == visible(name).removeprefix("'")
    assert not shown.lstrip(" ").startswith(("=", "+", "-", "@"))
    assert count == "1"


def test_one_table_is_alone_and_several_have_their_ids():
    assert render_csv(Report(title="one", data=Nothing(), tables=(TABLE,))) == table_csv(TABLE)
    other = Table(id="other", title="Other", columns=(Column("x"),), rows=((1,),))
    both = render_csv(Report(title="two", data=Nothing(), tables=(TABLE, other)))
    assert both == f"# by_op\n{table_csv(TABLE)}\n# other\nx\n1\n"
