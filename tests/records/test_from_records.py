"""Sessions of single records."""

from __future__ import annotations

import numpy as np
import pytest
from builders import op, spec
from hypothesis import given
from hypothesis import strategies as st

from rooflight.records.archive import load
from rooflight.records.assembly import session_of
from rooflight.records.record import Direction, ModuleEntry, OpRecord

X, Y = spec((4, 8)), spec((4, 8), "bfloat16")
NAMES = st.sampled_from(["", "a", "b"])
STORAGES = st.lists(st.integers(0, 2), max_size=3).map(tuple)
RECORDS = st.builds(
    OpRecord,
    signature=st.sampled_from([op("aten::relu", [X], [X]), op("aten::exp", [Y], [Y])]),
    module=st.builds(ModuleEntry, NAMES, NAMES),
    phase=NAMES,
    direction=st.sampled_from(Direction),
    function=NAMES,
    reads=STORAGES,
    writes=STORAGES,
    times_s=st.just((1e-6, 2e-6)),
)


@given(st.lists(RECORDS, max_size=6))
def test_the_records_come_back_as_they_were(records):
    assert list(session_of(records, storage_bytes=[8, 8, 8]).records) == records


def test_all_else_is_kept_through_a_file(tmp_path):
    parent = OpRecord(
        signature=op("aten::relu", [X], [X]), module=ModuleEntry("", ""), phase="", direction=Direction(0)
    )
    child = OpRecord(
        **{name: getattr(parent, name) for name in ("signature", "module", "phase", "direction")}, parent=0
    )
    session = session_of([parent, child], environment={"target": "it"}, notes=["n"], wall_samples_s=[0.5], clock="mine")
    again = load(session.save(tmp_path / "it.session"))
    assert [record.parent for record in again.records] == [None, 0]
    assert (again.environment, again.notes, again.measurement.wall_s) == ({"target": "it"}, ("n",), 0.5)
    assert again.measurement.clock == "mine"


def test_a_record_without_times_is_not_measured():
    timed = OpRecord(
        signature=op("aten::relu", [X], [X]),
        module=ModuleEntry("", ""),
        phase="",
        direction=Direction.FORWARD,
        times_s=(1.0, 3.0),
    )
    untimed = OpRecord(signature=timed.signature, module=timed.module, phase="", direction=Direction.FORWARD)
    measured = session_of([untimed, timed]).measurement.op_s
    assert np.isnan(measured[0])
    assert measured[1] == 2.0  # the median of 1 and 3
    assert session_of([untimed]).measurement is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([{"times_s": (1.0,)}, {"times_s": (1.0, 2.0)}], "records have 1 to 2 times"),
        ([{"reads": (1,)}], "record 0 touches storage 1: storage_bytes has 1 sizes"),
        ([{"writes": (-1,)}], "touches storage -1"),
        ([{"parent": 0}], "record 0 has parent 0"),
        ([{"parent": 5}], "record 0 has parent 5"),
    ],
)
def test_what_cannot_be_is_refused(changes, said):
    plain = {"signature": op("aten::relu"), "module": ModuleEntry("", ""), "phase": "", "direction": Direction.FORWARD}
    with pytest.raises(ValueError, match=said):
        session_of([OpRecord(**plain, **change) for change in changes], storage_bytes=[4])
