"""Steps that the profiler marked, by hand arithmetic."""

import json
from itertools import chain

import pytest
from kineto_traces import kernel, launch, op, ran, span, write

import rooflight as rl

MM = {"dims": [[4, 8], [8, 2]], "types": ["float", "float"]}
WIDE = {"dims": [[4, 8], [8, 3]], "types": ["float", "float"]}


def step(number, start, seconds, *, shapes=MM, lasts=100, wait=10, extra=0):
    """A step of ``lasts`` µs: mm has a kernel that begins ``wait`` µs after the step and takes ``seconds`` µs; then
    come ``extra`` ops without shapes, with kernels of 3 µs.
    """
    first = 100 * number
    events = [span(f"ProfilerStep#{number}", start, start + lasts), op("aten::mm", start + 1, start + 5, **shapes)]
    events += [launch(start + 2, first), kernel(start + wait, start + wait + seconds, first)]
    for place in range(extra):
        at = start + 50 + 5 * place
        number = first + 1 + place
        events += [op("aten::relu", at, at + 3), launch(at, number), kernel(at + 5, at + 8, number)]
    return events


@pytest.fixture
def steps(read):
    """Reads a trace of steps, with further events."""
    return lambda *several, more=(): read(*chain.from_iterable(several), *more)


def us(values):
    return pytest.approx([value * 1e-6 for value in values])


def test_equal_steps_are_samples_of_one(steps):
    session = steps(step(1, 0, 20), step(2, 100, 40), step(3, 200, 30))
    assert [one.signature.name for one in session.records] == ["aten::mm"]
    assert session.record(0).times_s == us([20, 40, 30])
    assert session.measurement.wall_samples_s.tolist() == us([100, 100, 100])
    assert session.measurement.op_starts_s.tolist() == [us([10])] * 3
    totals = rl.analyze(session).totals
    assert totals.matrix_flops == 2 * 4 * 8 * 2  # of one step
    assert totals.ops_measured_s == pytest.approx(30e-6)  # the median
    assert totals.measured_s == pytest.approx(100e-6)
    (note,) = session.notes
    assert note.startswith("The trace has 3 steps.")


def test_a_step_begins_when_the_device_has_finished_the_one_before(steps):
    # the host takes 10 µs per step, the device 40: step 1 runs from 5 to 45, step 2 from 45 to 85, step 3 to 125
    session = steps(*(step(n, 10 * (n - 1), 40, lasts=10, wait=wait) for n, wait in ((1, 5), (2, 35), (3, 65))))
    assert session.measurement.wall_samples_s.tolist() == us([45, 40, 40])
    first, second, third = session.measurement.timeline.steps
    assert (first.idle_s, second.idle_s, third.idle_s) == (pytest.approx(5e-6), pytest.approx(0), pytest.approx(0))
    assert second.busy_s == pytest.approx(40e-6)
    assert sum(each.wall_s for each in (first, second, third)) == pytest.approx(125e-6)


def test_other_steps_are_named_and_keep_their_time_when_saved_too(steps, tmp_path):
    warm_up, last = step(1, 0, 60, extra=2), step(4, 300, 10, shapes=WIDE, lasts=20)
    session = steps(warm_up, step(2, 100, 20), step(3, 200, 40), last)
    kept = rl.load(session.save(tmp_path / "it.session"))
    assert (kept.measurement.timeline, kept.signatures) == (session.measurement.timeline, session.signatures)
    timeline = session.measurement.timeline
    assert [(each.name, each.calls, each.in_session) for each in timeline.steps] == [
        ("ProfilerStep#1", 3, False),
        ("ProfilerStep#2", 1, True),
        ("ProfilerStep#3", 1, True),
        ("ProfilerStep#4", 1, False),
    ]
    assert session.record(0).times_s == us([20, 40])
    (note,) = session.notes
    assert "Other ops, or other shapes, have ProfilerStep#1, ProfilerStep#4." in note
    # the whole trace: 60 + 20 + 40 of mm, 10 of the wide one, 2 · 3 of relu, whose shapes are not known
    assert sum(timeline.signature_s) == pytest.approx(136e-6)
    assert timeline.no_shapes_s == pytest.approx(6e-6)


def test_of_steps_that_all_differ_the_median_is_taken(steps):
    session = steps(step(1, 0, 20, extra=1, lasts=90), step(2, 90, 20, extra=2, lasts=300), step(3, 390, 20, lasts=100))
    assert [each.name for each in session.measurement.timeline.steps if each.in_session] == ["ProfilerStep#3"]
    assert session.measurement.wall_s == pytest.approx(100e-6)


def test_work_of_no_op_is_that_of_a_step(steps):
    lone = [launch(60, 900), kernel(70, 74, 900), launch(160, 901), kernel(170, 180, 901)]
    session = steps(step(1, 0, 20), step(2, 100, 20), more=lone)
    timeline = session.measurement.timeline
    assert [each.without_op_s for each in timeline.steps] == us([4, 10])
    assert timeline.no_host_op_s == pytest.approx(14e-6)
    assert rl.analyze(session).account.by("cause")["no_op"] == pytest.approx(7e-6)  # of two steps the mean


def test_ops_outside_of_steps_are_counted_and_those_outside_of_all_are_the_session(steps):
    outside = [op("aten::mm", 200, 210, **MM), launch(201, 900), kernel(205, 212, 900)]
    session = steps(step(1, 0, 20), more=outside)
    assert len(session) == 1
    assert session.notes == ("1 op outside of the profiler's steps, in the timeline alone.",)
    assert session.measurement.timeline.wall_s == pytest.approx(212e-6)
    session = steps([span("ProfilerStep#1", 0, 50)], ran("aten::mm", 60, **MM))
    assert len(session) == 1
    assert session.notes == ("No op ran in the 1 step that is marked: all calls of the trace count as one step.",)


def test_an_annotation_that_repeats_is_named_and_splits_nothing(read):
    events = [[span("## forward ##", at, at + 50), *ran("aten::mm", at + 1, at, **MM)] for at in (0, 100, 200)]
    session = read(*chain.from_iterable(events))
    assert len(session) == 3
    assert session.measurement.timeline.steps == ()
    (note,) = session.notes
    assert '"## forward ##" occurs 3 times' in note


def test_steps_without_a_device_are_those_of_the_host(read):
    events = [[span(f"ProfilerStep#{at}", at, at + 80), op("aten::mm", at + 1, at + 5, **MM)] for at in (0, 100)]
    session = read(*chain.from_iterable(events))
    assert session.record(0).times_s == us([4, 4])
    assert session.measurement.wall_samples_s.tolist() == us([100, 80])


def test_steps_of_replays_alone_have_their_wall_times(read):
    events = []
    for n, at in ((1, 0), (2, 100)):
        events += [span(f"ProfilerStep#{n}", at, at + 90 + n), launch(at + 1, n, name="cudaGraphLaunch")]
        events.append(kernel(at + 5, at + 50, n))
    session = read(*events)
    assert len(session) == 0
    assert session.measurement.wall_samples_s.tolist() == us([100, 92])
    assert "measured step" in dict(rl.analyze(session).report().facts)


def test_the_document_is_of_the_whole_trace_and_of_its_steps(tmp_path, run):
    path = write(tmp_path / "trace.json", [*step(1, 0, 60, extra=2), *step(2, 100, 20), *step(3, 200, 40)])
    code, out, _ = run("analyze", path, "--json", "-")
    assert code == 0
    document = json.loads(out)
    assert document["timeline"]["wall_s"] == pytest.approx(300e-6)
    assert document["timeline"]["busy_s"] == pytest.approx((60 + 20 + 40) * 1e-6)  # relu runs beside mm
    steps = document["timeline"]["steps"]
    assert [each["wall_s"] for each in steps] == us([100, 100, 100])
    assert [each["in_session"] for each in steps] == [False, True, True]
    assert document["unattributed"]["no_shapes_s"] == pytest.approx(6e-6)


def test_steps_of_two_programs_that_overlap_are_not_mixed(steps):
    other = span("ProfilerStep#7", 30, 130, thread=9)
    session = steps(step(1, 0, 20), step(2, 100, 40), more=[other])
    assert [each.name for each in session.measurement.timeline.steps] == ["ProfilerStep#1", "ProfilerStep#2"]


def test_work_of_the_step_before_is_none_of_this_one(steps):
    # 50 µs of a step before the trace; the marked step has 20 µs of mm, all of it bounded
    before = kernel(0, 50, 1, name="of the step before")
    session = steps(step(6, 0, 20, wait=50), more=[before])
    report = rl.analyze(session).report()
    assert report.data.unattributed.before_trace_s == pytest.approx(50e-6)
    assert session.measurement.wall_s == pytest.approx(50e-6)  # from 50 to 100
    assert "has no bound" not in report.conclusion


OPTIMIZER, NEXT = "Optimizer.step#SGD.step", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def unmarked(name: str, *, leads: bool) -> list[dict]:
    """Three iterations of 100 µs, each with a product, after the annotation or before it."""
    events = []
    for number in range(3):
        at = 100 * number
        mark, product = (at + 2, at + 20) if leads else (at + 60, at + 20)
        events += [
            span(name, mark, mark + 10),
            op("aten::mm", product, product + 20, **MM),
            launch(product + 1, number + 1),
            kernel(product + 5, product + 35, number + 1),
        ]
    return events


@pytest.mark.parametrize(("name", "leads"), [(OPTIMIZER, False), (NEXT, True), ("train_step", True)])
def test_steps_of_a_trace_without_marks_follow_from_what_each_has_once(tmp_path, name, leads):
    session = rl.read_trace(write(tmp_path / "trace.json", unmarked(name, leads=leads)))
    assert len(session) == 1
    assert len(session.measurement.wall_samples_s) == 3
    assert session.measurement.wall_samples_s[1] == pytest.approx(100e-6)
    assert any("No steps are marked" in note for note in session.notes)


def test_one_call_of_the_optimizer_makes_no_steps(tmp_path):
    session = rl.read_trace(write(tmp_path / "trace.json", unmarked(OPTIMIZER, leads=False)[:4]))
    assert not session.measurement.timeline.steps
