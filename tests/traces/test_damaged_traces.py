"""Traces that are not as they should be: one clear line, or a session whose notes say what is missing."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_traces import kernel, launch, op, span, write

import rooflight as rl

MM = {"dims": [[4, 8], [8, 2]], "types": ["float", "float"]}
STEP = [op("aten::mm", 0, 10, **MM), launch(2, 5), kernel(3, 9, 5)]  # a kernel of 6 µs
H100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}


def changed(event, **fields):
    return {**event, **fields}


def without(event, *names):
    return {key: value for key, value in event.items() if key not in names}


def text_of(events):
    return json.dumps({"schemaVersion": 1, **H100, "traceEvents": events}).encode()


def read(tmp_path, content, name="trace.json"):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else text_of(content))
    return rl.read_trace(tmp_path / name)


def seconds_of(session):
    return {one.signature.name: one.times_s[0] for one in session.records}


REFUSED = {
    "nothing": (b"", "is empty"),
    "text": (b"hello", "is not a JSON object"),
    "UTF-16": (text_of(STEP).decode().encode("utf-16"), "is not a JSON object"),
    "no list of events": (b'{"traceEvents": {"a": 1}}', 'its "traceEvents" is no list'),
    "no events": (text_of([]), "has no events: nothing ran"),
    "numbers": (b"[1, 2, 3]", r"has 3 events, but no op .* \(damaged, or not an event at all: 3\)"),
    "another tool": (text_of([changed(STEP[0], cat="toplevel")]), r"\(category toplevel: 1\): give a trace of torch"),
    "no categories": (text_of([without(event, "cat") for event in STEP]), r"\(no category: 3\)"),
    "no kinds": (text_of([without(event, "ph") for event in STEP]), r"\(not a whole range \(ph X\).*: 3\)"),
    "no times": (text_of([without(event, "ts") for event in STEP]), r"\(no time at which it began: 3\)"),
    "cut in an event": (text_of(STEP * 20)[:3000], "ends in the middle of an event, after [0-9]+ whole ones"),
    "cut after an event": (text_of(STEP)[:-2], "ends in the middle of an event"),
    "cut gzip": (gzip.compress(text_of(STEP * 20))[:150], "the gzip file is damaged or ends too early"),
    "damaged gzip": (gzip.compress(text_of(STEP)) + b"rest", "the gzip file is damaged or ends too early"),
    "gzip of text": (gzip.compress(b"hello"), "is not a JSON object"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(100), r"is compressed by zstd.*unpack it first \(zstd -d\)"),
    "zip": (b"PK\x03\x04" + bytes(100), r"is a zip archive.*unpack it first \(unzip\)"),
    "two files in one": (text_of(STEP) * 2, "has more than one trace, one after the other"),
    "a deep head": (b'{"x":' + b"[" * 10**5 + b"]" * 10**5 + b',"traceEvents":[]}', "nested too deeply"),
}


@pytest.mark.parametrize("content", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, content):
    written, message = content
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, written)
    assert "trace.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("trace.json.gz", gzip.compress(text_of(STEP), mtime=0)[:100], "the gzip file is damaged or ends too early"),
        (
            "trace.json.zst",
            b"\x28\xb5\x2f\xfd" + bytes(100),
            "trace.json.zst is compressed by zstd, not JSON or gzip: unpack it first (zstd -d)",
        ),
    ],
)
def test_the_command_says_it_in_one_line(run, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    code, out, err = run("analyze", tmp_path / name)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err


AS_EVER = {
    "a comma at the end": text_of(STEP)[:-2] + b",]}",
    "a byte order mark": b"\xef\xbb\xbf" + text_of(STEP),
    "no brace at the end": text_of(STEP)[:-1],
    "reverse order": text_of(STEP[::-1]),
    "categories of 2021": text_of(
        [changed(event, cat=cat) for event, cat in zip(STEP, ("Operator", "Runtime", "Kernel"), strict=True)]
    ),
    "numbers as texts": text_of([changed(event, ts=str(event["ts"]), dur=str(event["dur"])) for event in STEP]),
    "ids as texts": text_of([STEP[0], *(changed(event, args={"correlation": "5"}) for event in STEP[1:])]),
    "ids in hex": text_of([STEP[0], *(changed(event, args={"correlation": "0x5"}) for event in STEP[1:])]),
    "unsigned ids": text_of([STEP[0], *(changed(event, args={"correlation": 2**64 - 5}) for event in STEP[1:])]),
    "no processes": text_of([without(event, "pid", "tid") for event in STEP]),
    "a device without number": text_of([*STEP[:2], changed(STEP[2], args={"correlation": 5, "device": "GPU 0"})]),
    "huge streams": text_of([*STEP[:2], changed(STEP[2], args={"correlation": 5, "device": 2**40, "stream": 2**70})]),
    "odd properties": text_of(STEP).replace(b'"id": 0', b'"id": []'),
}


@pytest.mark.parametrize("content", AS_EVER.values(), ids=AS_EVER.keys())
def test_what_can_be_understood_is_read(tmp_path, content):
    assert seconds_of(read(tmp_path, content)) == {"aten::mm": pytest.approx(6e-6)}


EXTRA = {  # an event beside the step, and why it is left out
    "before 1970": (changed(STEP[0], ts=-1e15), "more than an hour away from all others"),
    "at the end of time": (changed(STEP[0], ts=1e300), "no time at which it began"),
    "at no number": (changed(STEP[0], ts="soon"), "no time at which it began"),
    "at nothing": (changed(STEP[0], ts=None), "no time at which it began"),
    "without a begin": (without(STEP[0], "ts"), "no time at which it began"),
    "without a duration": (without(STEP[2], "dur"), "no duration"),
    "no number": (changed(STEP[2], dur=float("nan")), "no duration"),
    "endless": (changed(STEP[2], dur=float("inf")), "no duration"),
    "backwards": (changed(STEP[2], dur=-5), "a duration below 0"),
    "a begin": (changed(STEP[2], ph="B"), "not a whole range"),
    "unknown": (changed(STEP[2], cat="telemetry"), "category telemetry"),
    "a number": (17, "damaged, or not an event at all"),
}


@pytest.mark.parametrize("extra", EXTRA.values(), ids=EXTRA.keys())
@pytest.mark.parametrize("place", [0, 3])
def test_an_event_that_makes_no_sense_is_left_out_and_counted(tmp_path, extra, place):
    event, why = extra
    session = read(tmp_path, [*STEP[:place], event, *STEP[place:]])
    assert seconds_of(session) == {"aten::mm": pytest.approx(6e-6)}
    (note,) = [note for note in session.notes if "left out" in note]
    assert note.startswith(f"trace.json: 1 event left out: {why}")
    assert session.measurement.wall_s == pytest.approx(10e-6)


DAMAGED = {  # what the text of an event becomes, and the events left out
    "-nan": (b'"dur": 4.5', b'"dur": -nan', "no duration"),
    "deep": (b'"dur": 4.5', b'"dur": 4.5, "x": ' + b"[" * 10**5 + b"]" * 10**5, "damaged"),
    "text": (b'"dur": 4.5', b'"dur": 4.5 oh', "damaged"),
    "quote": (b'"extra"', b'"ex"tra"', "damaged"),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
@pytest.mark.parametrize("place", [0, 1, 3])
def test_damage_to_an_event_costs_this_event(tmp_path, damage, place):
    good, bad, why = damage
    extra = kernel(20, 24.5, 77, name="extra")
    content = text_of([*STEP[:place], extra, *STEP[place:]])
    assert good in content
    session = read(tmp_path, content.replace(good, bad))
    assert seconds_of(session) == {"aten::mm": pytest.approx(6e-6)}
    assert any(f"1 event left out: {why}" in note for note in session.notes)


NAMES = ["a\\ud800b", "C:\\Users\\x", "aten::m\xff", "x" * 2**20, "\x1b[31m\u202e\\u0000</script>", ""]


@pytest.mark.parametrize("name", NAMES, ids=["surrogate", "path", "no UTF-8", "long", "escapes", "none"])
def test_hostile_names_are_read_and_shown(run, tmp_path, name):
    path = tmp_path / "trace.json"
    content = text_of([*STEP, kernel(20, 24, 77, name="kernel_without_op")])
    encoded = name.encode("latin-1") if "\xff" in name else name.encode()
    content = content.replace(b"aten::mm", encoded).replace(b"kernel_without_op", b"k" + encoded)
    path.write_bytes(content)
    (op_name,) = seconds_of(rl.read_trace(path))
    assert op_name.startswith("trace::")
    code, out, _ = run("analyze", path)
    assert code == 0
    assert "\x1b[31m" not in out
    assert len(out) < 300_000  # some times the name, not of a million characters
    code, out, _ = run("analyze", path, "--json", "-")
    assert code == 0
    json.loads(out)


def test_times_since_1970_are_exact(tmp_path):
    # floats of so many nanoseconds are 256 apart: op 1 ends where op 2 begins, and must not seem to be around it
    begin = 1_727_743_122_000_001
    events = [op("aten::mm", 3 * n, 3 * n + 3, **MM) for n in range(100)]
    events += [launch(3 * n + 1, n + 1) for n in range(100)]
    events += [kernel(400 + 10 * n, 400 + 11 * n, n + 1) for n in range(100)]
    events = [changed(event, ts=event["ts"] + begin) for event in events]
    session = read(tmp_path, events)
    assert [one.times_s[0] for one in session.records] == pytest.approx([n * 1e-6 for n in range(100)])


@pytest.mark.parametrize(
    ("events", "notes"),
    [
        (
            [op("aten::mm", 50, 60, **MM), launch(55, 5), kernel(15, 25, 5)],
            [
                "Of 1 pieces of the device's work 1 piece begins before the call",
                "by up to 40.0 µs: the clocks of host and device differ",
            ],
        ),
        (STEP[:2], ["1 call launched work on a device, of which the trace has nothing: no op has a time"]),
        ([*STEP, kernel(10, 10, 5)], ["1 piece of the device's work took 0 s by its clock"]),
    ],
)
def test_times_and_work_that_cannot_be_right_are_noted(tmp_path, events, notes):
    (note,) = read(tmp_path, events).notes
    assert all(part in note for part in notes)


def test_two_clocks_are_noted(tmp_path):
    later = 7200 * 10**6  # µs
    session = read(tmp_path, [*STEP[:2], kernel(later, later + 6, 5), kernel(later + 10, later + 16, 5)])
    assert "For 7200 s nothing begins in the trace" in session.notes[0]
    assert session.measurement.wall_s == pytest.approx(7200, rel=1e-3)


def test_an_id_that_comes_twice_belongs_to_the_call_before_the_work(tmp_path):
    add = {"dims": [[4, 2], [4, 2], []], "types": ["float", "float", "Scalar"], "Concrete_Inputs": ["", "", "1"]}
    second = [op("aten::add", 20, 30, **add), launch(22, 5), kernel(24, 29, 5)]
    expected = {"aten::mm": pytest.approx(6e-6), "aten::add": pytest.approx(5e-6)}
    for events in ([*STEP, *second], [*second, *STEP]):
        assert seconds_of(read(tmp_path, events)) == expected


@pytest.mark.parametrize("dims", [[2**61, 2], [2**31, 2**31], [1] * 70, [2**47, 2**20, 0, 3]])
def test_shapes_that_no_memory_holds_are_none(tmp_path, dims):
    session = read(tmp_path, [op("aten::mm", 0, 10, dims=[dims, dims], types=["float", "float"]), *STEP[1:]])
    rl.analyze(session).report()
    assert seconds_of(session) == {"aten::mm": pytest.approx(6e-6)}


def test_an_unknown_gpu_asks_for_the_device(run, tmp_path):
    path = write(tmp_path / "trace.json", STEP, gpu="NVIDIA H900")
    code, out, _ = run("analyze", path)
    assert code == 0
    assert 'unknown device "NVIDIA H900"' in " ".join(out.split())
    assert "--device" in out
    assert run("analyze", path, "--device", "H100-SXM5-80GB")[0] == 0


def test_nests_of_any_depth_are_read(tmp_path):
    depth = 3000
    spans = [span(f"phase {n}", n, 20_000 - n) for n in range(depth)]
    ops = [op("aten::mm", n, 20_000 - n, **MM) for n in range(depth)]
    launches = [launch(8000 + 2 * n, n + 1) for n in range(depth)]
    session = read(tmp_path, [*spans, *ops, *launches, *(kernel(30_000 + n, 30_001 + n, n + 1) for n in range(depth))])
    (record,) = session.records
    assert record.phase == "phase 0"  # the op is the outermost
    assert record.times_s[0] == pytest.approx(depth * 1e-6)


FIELDS = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]
ARGS = ["Input Dims", "Input type", "Input Strides", "Concrete Inputs", "correlation", "device", "stream"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
REAL = [
    *STEP,
    op("aten::cat", 20, 30, dims=[[[4], [8]], []], types=["TensorList", "Scalar"], Concrete_Inputs=["", "0"]),
    launch(22, 6),
    kernel(31, 40, 6, cat="gpu_memcpy"),
    span("ProfilerStep#1", 0, 50),
    op("record_param_comms", 40, 48, Collective_name="allreduce", dtype="Float", In_msg_nelems=8, Out_msg_nelems=8),
    launch(42, 7),
    kernel(44, 60, 7, name="ncclDevKernel_AllReduce"),
]


def test_a_collective_of_unknown_ranks_has_no_bus_bandwidth(tmp_path):
    (found,) = rl.analyze(read(tmp_path, REAL)).communication.collectives
    assert found.group.size == 0
    assert found.algorithm_bytes_per_s == pytest.approx(8 * 4 / 16e-6)  # 8 floats in 16 µs
    assert found.bus_bytes_per_s is None


@st.composite
def mutated(draw):
    events = [{**event, "args": dict(event["args"])} for event in REAL]
    for _ in range(draw(st.integers(1, 4))):
        event = draw(st.sampled_from(events))
        where, key = event, draw(st.sampled_from(FIELDS))
        if key == "args" and isinstance(event.get("args"), dict) and draw(st.booleans()):
            where, key = event["args"], draw(st.sampled_from(ARGS))
        if draw(st.booleans()):
            where.pop(key, None)
        else:
            where[key] = draw(VALUES)
    return events


def test_what_kernels_take_in_sum_does_not_wrap(tmp_path):
    """Of three kernels of 4e15 µs, the longest that is read: 1.2e19 ns, where int64 ends at 9.2e18."""
    kernels = [changed(kernel(3, 9, 5), name=f"gemm{place}", dur=4e15) for place in range(3)]
    analysis = rl.analyze(read(tmp_path, [*STEP[:2], *kernels]))
    assert analysis.timeline.launches.kernels_s == pytest.approx(1.2e10)


def survives(path):
    """A session that can be analysed and saved, or one line."""
    try:
        session = rl.read_trace(path)
        rl.analyze(session, "H100-SXM5-80GB").report()
        session.save(path.with_suffix(".session"))
        assert len(rl.load(path.with_suffix(".session"))) == len(session)
    except ValueError as error:
        if "\n" in str(error):
            raise AssertionError("more than one line") from error


@given(mutated())
def test_no_change_of_an_event_breaks_the_reader(tmp_path_factory, events):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    path.write_bytes(text_of(events))
    survives(path)


@given(st.data())
def test_no_change_of_a_byte_breaks_the_reader(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    text = text_of(REAL)
    begin = data.draw(st.integers(0, len(text)))
    end = begin + data.draw(st.sampled_from([0, 1, 1, 5, 300, len(text)]))
    path.write_bytes(text[:begin] + data.draw(st.binary(max_size=3)) + text[end:])
    survives(path)
