"""Reports: columns name their unit, tables keep all rows and say what people read, ids are unique."""

from __future__ import annotations

import pytest
from builders import Nothing

from rooflight.records.report import Column, Report, Table


@pytest.mark.parametrize(
    ("name", "unit", "key"),
    [
        ("measured", "s", "measured_s"),
        ("so far", "", "so_far"),
        ("matrix", "FLOP", "matrix_flops"),
        ("bytes", "B", "bytes"),  # the unit is named already
        ("bytes of its tensors", "B", "bytes_of_its_tensors"),
        ("alg bw", "B/s", "alg_bw_bytes_per_s"),
        ("share", "%", "share"),
        ("true / predicted, 90 %", "", "true_predicted_90"),
    ],
)
def test_the_key_of_a_column_has_its_unit(name, unit, key):
    assert Column(name, unit).key == key


def test_a_table_keeps_the_rows_that_people_do_not_read():
    table = Table(id="t", title="T", columns=(Column("op"), Column("time", "s")), rows=(("a", 1.0), ("b", 2.0)), top=1)
    assert table.shown == (("a", 1.0),)
    assert table.left_out == 1
    assert table.values("time") == (1.0, 2.0)
    with pytest.raises(ValueError, match="not in tuple"):
        table.values("colour")


def test_tables_are_found_by_their_ids():
    table = Table(id="t", title="T", columns=(), rows=())
    report = Report(title="r", data=Nothing(), tables=(table,))
    assert report.table("t") is table
    assert report.table("T") is None
    assert report.data.schema() == "rooflight.test/3"
    with pytest.raises(AssertionError, match="unique"):
        Report(title="r", data=Nothing(), tables=(table, table))
