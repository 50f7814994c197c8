"""Memory at the peak, over the step, and who made it: arithmetic by hand, then properties."""

import dataclasses
import json

import numpy as np
from builders import op, spec
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import Call, session_of

from rooflight.devices import get
from rooflight.records.account import Place
from rooflight.records.record import Direction, StorageKind
from rooflight.records.session import KEPT, STOOD, Lifetimes, Session
from rooflight.reporting.json import render_json
from rooflight.reporting.markdown import render_markdown
from rooflight.roofline.analysis import analyze
from rooflight.roofline.memory.texts import memory_series, sparkline
from rooflight.roofline.memory.use import BEFORE, UNSEEN, Alive, KindBytes, compiled_peak, memory_use
from rooflight.roofline.tables.report import report_of

H100 = get("H100-SXM5-80GB")
ADD = op("aten::add", {"self": spec((4, 4)), "other": spec((4, 4))}, [spec((4, 4))])
MM = op("aten::mm", {"self": spec((4, 4)), "mat2": spec((4, 4))}, [spec((4, 4))])
INPUT, PARAMETER, GRADIENT = StorageKind.DATA, StorageKind.PARAMETER, StorageKind.GRADIENT
STATE, ACTIVATION, TEMPORARY = StorageKind.OPTIMIZER_STATE, StorageKind.ACTIVATION, StorageKind.TEMPORARY


def followed(session: Session, kind: list[StorageKind], made: list[int], freed: list[int]) -> Session:
    lifetimes = Lifetimes(
        kind=np.array(kind, dtype=np.int8),
        made=np.array(made, dtype=np.int32),
        freed=np.array(freed, dtype=np.int32),
        local=np.zeros(len(kind), dtype=np.bool_),
        owner=np.zeros(len(kind), dtype=np.int32),
    )
    return dataclasses.replace(session, lifetimes=lifetimes)


OWN = {"holder": "", "where": Place(), "touched": True}


def layer(index: int) -> dict[str, str]:
    return {"module": f"h.{index}.mlp", "layer": "MLP"}


# A weight, an input and a weight that nothing uses stand; two layers make an activation each; backward frees them.
STEP = followed(
    session_of(
        [
            Call(op=MM, reads=(0, 1), writes=(3,), **layer(0)),
            Call(op=MM, reads=(0, 3), writes=(4,), **layer(1)),
            Call(op=ADD, reads=(4, 4), writes=(5,)),
            Call(op=MM, reads=(5, 3), writes=(6,), direction=Direction.BACKWARD, **layer(1)),
            Call(op=ADD, reads=(6, 0), writes=(0,), direction=Direction.OPTIMIZER),
        ],
        storage_bytes=[1000, 10, 200, 30, 40, 50, 60],
    ),
    [PARAMETER, INPUT, PARAMETER, ACTIVATION, ACTIVATION, TEMPORARY, GRADIENT],
    [STOOD, STOOD, STOOD, 0, 1, 2, 3],
    [KEPT, 2, KEPT, 4, 4, 3, KEPT],
)


def test_the_timeline_is_what_was_made_and_not_yet_freed():
    use = memory_use(STEP)
    assert use.followed
    assert use.standing_bytes == 1000 + 10 + 200
    totals = use.bytes_alive.sum(axis=1).tolist()
    assert totals == [
        1210 + 30,
        1210 + 30 + 40,
        1200 + 30 + 40 + 50,  # the input was freed when two records had run
        1200 + 30 + 40 + 60,
        1200 + 60,
    ]
    assert (use.peak_bytes, use.peak_record) == (1330, 3)
    assert use.by_kind == KindBytes(
        data=0, parameter=1200, gradient=60, optimizer_state=0, activation=70, temporary=0, other=0, buffer=0, cache=0
    )
    assert use.bytes_alive[2].tolist() == [0, 1200, 0, 0, 70, 50, 0, 0, 0]


def test_what_stays_inside_of_compiled_kernels_takes_no_memory():
    assert compiled_peak(STEP, range(7)) == 1330
    assert compiled_peak(STEP, (3, 6)) == 1200 + 30 + 60
    assert compiled_peak(STEP, ()) == 1210  # what stands


def test_what_is_alive_at_the_peak_says_who_made_it():
    assert memory_use(STEP).rows == (
        Alive(bytes=1000, count=1, kind="parameter", op=BEFORE, module="h.*.mlp", layer="MLP", phase="", **OWN),
        Alive(bytes=200, kind="parameter", op=BEFORE, **{**OWN, "touched": False}),
        # 30 + 40: the activations of both layers are one entry
        Alive(
            bytes=70, count=2, kind="activation", op="aten::mm", module="h.*.mlp", layer="MLP", phase="forward", **OWN
        ),
        Alive(
            bytes=60, count=1, kind="gradient", op="aten::mm", module="h.*.mlp", layer="MLP", phase="backward", **OWN
        ),
    )


def test_parts_of_a_composite_are_named_after_the_whole():
    calls = [Call(op=ADD, reads=(0,), writes=(1,), parent=1), Call(op=MM, reads=(0,), writes=(1,))]
    session = session_of(calls, storage_bytes=[8, 16])
    (made, stood) = memory_use(session).rows
    assert (made.op, made.bytes) == ("aten::mm", 16)
    assert stood.op == BEFORE


def test_what_came_without_an_op_is_not_put_on_the_next_one():
    session = session_of([Call(op=ADD, reads=(0,)), Call(op=ADD, reads=(0, 1))], storage_bytes=[8, 16])
    use = memory_use(followed(session, [INPUT, TEMPORARY], [STOOD, 0], [KEPT, KEPT]))
    assert [(alive.op, alive.bytes) for alive in use.rows] == [(UNSEEN, 16), (BEFORE, 8)]


def test_unfollowed_memory_lives_from_the_first_to_the_last_touch():
    session = dataclasses.replace(STEP, lifetimes=None)
    use = memory_use(session)
    assert not use.followed
    assert use.standing_bytes == 1000 + 10  # nobody saw the weight that nothing uses
    # storage 3 to record 3, 4 to 2, 5 to 3
    assert use.bytes_alive.sum(axis=1).tolist() == [1010 + extra for extra in (30, 70, 120, 30 + 50 + 60, 60)]
    assert use.by_kind[ACTIVATION] == 30 + 50  # made forward, last used backward
    assert use.by_kind[INPUT] == 1010


def test_an_empty_session_needs_nothing():
    use = memory_use(session_of([]))
    assert (use.peak_bytes, use.standing_bytes, use.peak_record, use.rows, use.timeline) == (0, 0, -1, (), ())
    assert use.profile(None, 3) == [0, 0, 0]


def test_the_report_shows_the_peak_and_its_course():
    text = render_markdown(report_of(analyze(STEP, H100)))
    assert "peak 1.33 kB, of which 1.21 kB was allocated before the step" in text
    assert "Memory at the peak" in text
    assert "| activation | 70.0 B | 5.3% |" in text  # 70 / 1330
    assert "| activation | 70.0 B | 2 | mm | h.\\*.mlp (MLP) | forward |" in text
    data = json.loads(render_json(report_of(analyze(STEP, H100))))["memory"]
    assert data["peak_bytes"] == 1330
    assert data["followed"] is True
    assert data["by_kind"]["parameter"] == 1200
    assert len(data["timeline"]) == 5
    assert data["timeline"][3] == {
        "record": 3, "phase": "backward", "data": 0, "parameter": 1200, "gradient": 60, "optimizer_state": 0,
        "activation": 70, "temporary": 0, "other": 0, "buffer": 0, "cache": 0,
    }  # fmt: skip
    assert sum(alive["bytes"] for alive in data["rows"]) == 1330


def test_the_report_of_an_unfollowed_session_claims_the_least_only():
    text = render_markdown(report_of(analyze(dataclasses.replace(STEP, lifetimes=None), H100)))
    assert "at least 1.15 kB" in text
    assert "| from before the step | 1.01 kB |" in text
    assert "the least that the step needs" in text


def test_a_sparkline_has_eight_heights_and_a_dot_for_nothing():
    assert sparkline([0, 1, 12, 13, 50, 99, 100], 100) == "·▁▁▂▄██"
    assert sparkline([0, 0], 0) == "··"


@st.composite
def lives(draw: st.DrawFn) -> Session:
    count, storages = draw(st.integers(0, 30)), draw(st.integers(0, 12))
    ids = st.lists(st.integers(0, storages - 1), max_size=3) if storages else st.just([])
    calls = [
        Call(
            op=draw(st.sampled_from([ADD, MM])),
            direction=draw(st.sampled_from(Direction)),
            reads=tuple(draw(ids)),
            writes=tuple(draw(ids)),
            **layer(draw(st.integers(0, 2))),
        )
        for _ in range(count)
    ]
    sizes = draw(st.lists(st.integers(0, 1000), min_size=storages, max_size=storages))
    session = session_of(calls, storage_bytes=sizes)
    if draw(st.booleans()):
        return session
    made = [draw(st.integers(STOOD, count)) for _ in range(storages)]
    freed = [draw(st.just(KEPT) | st.integers(max(start, 0), count)) for start in made]
    return followed(session, [draw(st.sampled_from(StorageKind)) for _ in range(storages)], made, freed)


@settings(max_examples=200, deadline=None)
@given(lives())
def test_every_view_of_the_peak_agrees(session: Session):
    use = memory_use(session)
    assert sum(use.by_kind[kind] for kind in StorageKind) == use.peak_bytes
    if not len(session):
        return
    assert sum(alive.bytes for alive in use.rows) == use.peak_bytes
    assert (use.bytes_alive >= 0).all()
    assert use.peak_bytes == use.bytes_alive.sum(axis=1).max()
    assert use.peak_bytes <= int(session.storage_bytes.sum())
    points = use.timeline
    assert len(points) <= min(200, len(session))
    assert max(sum(point[kind] for kind in StorageKind) for point in points) == use.peak_bytes
    assert [point.record for point in points] == sorted({point.record for point in points})
    assert max(use.profile(None, 5)) == use.peak_bytes


@settings(max_examples=100, deadline=None)
@given(lives())
def test_the_least_is_never_more_than_what_was_watched(session: Session):
    """A storage cannot be freed before its last use: with such lifetimes, following memory only adds."""
    least = memory_use(dataclasses.replace(session, lifetimes=None))
    longer = memory_use(followed(session, [TEMPORARY] * len(session.storage_bytes), *(_longest(session))))
    assert least.peak_bytes <= longer.peak_bytes


def _longest(session: Session) -> tuple[list[int], list[int]]:
    return [STOOD] * len(session.storage_bytes), [KEPT] * len(session.storage_bytes)


def test_a_million_records_do_not_take_long():
    calls = [Call(op=ADD, reads=(0,), writes=(1,)), Call(op=MM, reads=(1,), writes=(0,))]
    small = session_of(calls, storage_bytes=[10, 20])
    times = 100_000
    columns = small.columns
    tiled = {name: np.tile(array, times) for name, array in columns.named_arrays() if not name.endswith("offsets")}
    offsets = np.arange(2 * times + 1)
    session = dataclasses.replace(
        small, columns=dataclasses.replace(columns, **tiled, read_offsets=offsets, written_offsets=offsets)
    )
    use = memory_use(session)
    assert use.peak_bytes == 30
    assert len(use.timeline) == 200


def test_a_custom_op_may_hold_a_copy_of_all_that_it_touches():
    names = [op.name for op in STEP.signatures]
    assert memory_use(STEP).inside_custom_ops_bytes == 0
    custom = dataclasses.replace(
        STEP, signatures=tuple(dataclasses.replace(op, name=f"mine::{op.name[6:]}") for op in STEP.signatures)
    )
    found = memory_use(custom)
    touched = [sum(int(STEP.storage_bytes[each]) for each in (*op.reads, *op.writes)) for op in STEP.records]
    assert found.inside_custom_ops_bytes == max(found.bytes_alive.sum(axis=1) + touched)
    assert found.high_bytes == max(found.inside_custom_ops_bytes, found.reserved_bytes)
    assert found.low_bytes == found.peak_bytes == 1330
    assert all(name.startswith("aten::") for name in names)


def test_the_picture_marks_phases():
    (series,) = memory_series(memory_use(STEP))
    assert [name for _, name in series.x.sections] == ["forward", "backward", "optimizer"]
    begins = [begin for begin, _ in series.x.sections]
    assert begins == sorted(begins)
