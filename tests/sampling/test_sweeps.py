"""Which shape comes next: grids, parts, and the smart design."""

from __future__ import annotations

import pytest

from rooflight.costs.operators import registry
from rooflight.costs.operators.sizes import ADD, MUL, Progression, Span
from rooflight.records.samples import Row, Rows, Status
from rooflight.sampling.request import SamplingRequest, seconds
from rooflight.sampling.smart_sweep import SmartSweep
from rooflight.sampling.sweeps import Grid, PointSweep, full_grid, small_shapes
from rooflight.sampling.tasks import tasks

COPY = registry.find("copy")
ONE_PROCESS = [operator for operator in registry.every() if not operator.ranks]


def grid(end: int, start: int = 1) -> Grid:
    return Grid(operator=COPY, axes=(("elements", Progression(start, 1, end, ADD)),))


def drain(sweep, rows, spend_s=0.0, time_s=lambda shape: 1e-6):
    found = []
    while (shape := sweep.next(rows)) is not None:
        samples = {direction: (time_s(shape),) * 7 for direction in ("fwd",)}
        rows.add(Row(shape=shape, status=Status.OK, samples_s=samples, spent_s=spend_s))
        found.append(rows.key(shape))
    return found


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        (Progression(1, 2, 16, MUL), [1, 2, 4, 8, 16]),
        (Progression(4, 2, 15, MUL), [4, 8]),
        (Progression(16, 8, 40, ADD), [16, 24, 32, 40]),
        (Progression(16, 8, 39, ADD), [16, 24, 32]),
        (Progression(2, 2, 2, MUL), [2]),
        (Progression(0, 1, 1, ADD), [0, 1]),
        (Progression(8, 2, 4, MUL), []),
    ],
)
def test_axes_include_their_ends(axis, values):
    assert list(axis) == values
    assert len(axis) == len(values)


def test_parts_share_all_shapes_and_none_twice():
    parts = [drain(PointSweep(grid(100), parts=3, part=part), Rows(("elements",))) for part in (1, 2, 3)]
    assert [len(part) for part in parts] == [34, 33, 33]
    assert sorted(key for part in parts for key in part) == [(n,) for n in range(1, 101)]
    again = drain(PointSweep(grid(100), parts=3, part=2), Rows(("elements",)))
    assert again == parts[1]


def test_shapes_with_a_row_are_passed_over():
    rows = Rows(("elements",))
    rows.add(Row(shape={"elements": 2}, status=Status.OUT_OF_MEMORY))
    assert drain(PointSweep(grid(4)), rows) == [(1,), (3,), (4,)]


def test_a_billion_shapes_are_counted_not_made():
    operator = registry.find("gemm")
    axis = Progression(1, 1, 10**7, ADD)
    huge = Grid(operator=operator, axes=(("m", axis), ("n", axis), ("k", axis)))
    assert PointSweep(huge).total == 10**21
    assert PointSweep(huge).next(Rows(operator.parameters)) == operator.shape([1, 1, 1])


@pytest.mark.parametrize(
    ("shapes", "parts", "part", "message"),
    [
        (grid(10), 4, 5, "--part 5 of --parts 4"),
        (grid(10), 4, 0, "--part 0.*numbered from 1 to 4"),
        (grid(10), 0, 1, "--parts 0: give at least 1"),
        (grid(1, start=2), 1, 1, "the sweep has 0 shapes"),
    ],
)
def test_a_part_must_be_among_the_parts_and_a_sweep_have_shapes(shapes, parts, part, message):
    with pytest.raises(ValueError, match=message):
        PointSweep(shapes, parts=parts, part=part)


def test_budgets_are_times():
    assert [seconds(text) for text in ("90", "90s", "5m", "0.5h")] == [90, 90, 300, 1800]
    for text in ("", "m", "-5m", "0", "nan", "inf", "5 minutes"):
        with pytest.raises(ValueError, match="is no time: write 90s, 5m, 2h or 1h30m"):
            seconds(text)


def test_spans_turn_places_into_sizes_and_back():
    span = Span(16, 16_384, 16)
    assert span.at(0.0) == 16
    assert span.at(0.5) == 512  # halfway between 2^4 and 2^14 lies 2^9
    assert span.at(0.999999) == 16_384
    assert span.place(512) == pytest.approx(0.5)
    assert Span(choices=(1, 2, 4)).at(0.99) == 4


def smart(budget_s=10.0, part=1, name="gemm"):
    return SmartSweep(registry.find(name), "float32", budget_s=budget_s, kind="cpu", parts=2, part=part)


def test_smart_ends_with_its_budget_and_goes_on_where_it_was():
    rows = Rows(registry.find("gemm").parameters)
    first = drain(smart(), rows, spend_s=0.5)
    assert len(first) == 20
    assert len(set(first)) == 20
    assert smart().next(rows) is None
    assert smart(budget_s=11.0).next(rows) is not None
    assert smart().left_s(rows) == 0.0


def test_smart_is_the_same_again_and_different_in_another_part():
    first = [drain(smart(part=part), Rows(registry.find("gemm").parameters), spend_s=1.0) for part in (1, 1, 2)]
    assert first[0] == first[1]
    assert not set(first[0]) & set(first[2])


def test_smart_fills_the_space():
    shapes = drain(smart(budget_s=1e4), Rows(registry.find("gemm").parameters), spend_s=1e4 / 3 / 64 + 1e-9)[:64]
    for place in range(3):
        thirds = [int(3 * registry.find("gemm").sizes["mnk"[place]].smart.place(shape[place])) for shape in shapes]
        assert min(thirds.count(third) for third in (0, 1, 2)) >= 12  # 64 / 3 = 21 each if perfectly even


def test_smart_goes_where_the_model_is_least_sure():
    """Times are smooth but for one corner, where they jump by a hash: that is where refinement looks."""
    operator = registry.find("swiglu")
    span = operator.sizes["rows"].smart

    def rough(shape) -> bool:
        return span.place(shape["rows"]) > 0.75

    def time_s(shape):
        smooth = 1e-8 * shape["rows"] * shape["dim"]
        return smooth * (1 + 5 * (hash((shape["rows"], shape["dim"])) % 7)) if rough(shape) else smooth

    sweep = SmartSweep(operator, "float32", budget_s=150.0, kind="cuda")
    rows = Rows(operator.parameters)
    drain(sweep, rows, spend_s=1.0, time_s=time_s)
    corner = [rough(row.shape) for row in rows.values()]
    before, after = corner[:50], corner[50:]
    assert sum(before) / len(before) < 0.35
    assert sum(after) / len(after) > 0.5


@pytest.mark.parametrize(
    "operator", [each for each in registry.every() if not each.ranks], ids=lambda operator: operator.name
)
def test_every_operator_has_its_sweeps(operator):
    assert full_grid(operator).size > 10
    assert operator.shape(full_grid(operator)[0])
    tests = small_shapes(operator)
    assert 2 <= tests.size <= 8
    assert all(operator.refusal(tests[number]) is None for number in range(tests.size))
    shape = SmartSweep(operator, "bfloat16", budget_s=100.0, kind="cuda").next(Rows(operator.parameters))
    assert shape is not None
    assert operator.refusal(shape) is None


def test_operators_share_the_budget_of_a_smart_sweep_that_names_none():
    found = tasks(SamplingRequest(sweep="smart", budget="100s", cpu=True))
    shares = {task.job.operator.name: task.sweep.budget_s for task in found}
    declared = {operator.name: operator.smart_share for operator in registry.every() if operator.smart_share}
    assert shares == pytest.approx({name: 100 * share / sum(declared.values()) for name, share in declared.items()})
    assert next(iter(shares)) == "gemm"
    named = tasks(SamplingRequest(operators=("gemm", "copy"), sweep="smart", budget="100s", cpu=True))
    assert [task.sweep.budget_s for task in named] == [50.0, 50.0]
