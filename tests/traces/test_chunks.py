"""Reading a trace file in pieces: however it is cut, every event arrives once, and nothing damaged passes."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.sources.traces.file import chunks
from rooflight.sources.traces.file.chunks import TraceChunks
from rooflight.sources.traces.file.discovery import is_trace

names = st.text(alphabet=st.sampled_from('ab"\\{}[],: \n'), max_size=8)
events = st.lists(
    st.fixed_dictionaries(
        {
            **{
                "ph": st.just("X"),
                "cat": st.just("cpu_op"),
                "name": names,
                "ts": st.integers(0, 10**6),
                "dur": st.just(1),
            },
            "args": st.fixed_dictionaries(
                {"Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2)}
            ),
        }
    ),
    max_size=12,
)


@given(events, st.sampled_from([None, 1]), st.booleans(), st.integers(1, 200))
def test_every_event_arrives_once_however_the_file_is_cut(tmp_path_factory, listed, indent, compressed, size):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    text = json.dumps({"schemaVersion": 1, "traceEvents": listed, "traceName": "x]}"}, indent=indent).encode()
    path.write_bytes(gzip.compress(text) if compressed else text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "_CHUNK", size)
        found = TraceChunks(path)
        read = [event for piece in found for event in piece]
    assert [(event.name, event.ts) for event in read] == [(event["name"], event["ts"]) for event in listed]
    assert [json.loads(bytes(event.args.dims)) for event in read] == [event["args"]["Input Dims"] for event in listed]
    assert found.head == {"schemaVersion": 1, "traceName": "x]}"}
    assert found.odd == 0


def test_a_bare_list_is_a_trace_and_a_config_is_none(tmp_path):
    (tmp_path / "trace.json").write_text('[{"ph": "X", "name": "a"}, {"ph": "X", "name": "b"}]')
    assert [event.name for piece in TraceChunks(tmp_path / "trace.json") for event in piece] == ["a", "b"]
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    paths = ("trace.json", "config.json", "missing.json", ".")
    assert [is_trace(tmp_path / path) for path in paths] == [True, False, False, False]


def test_fields_that_make_no_sense_are_unknown_and_their_events_counted(tmp_path):
    good = {"ph": "X", "name": "a", "args": {"correlation": 3, "bytes": "128"}}
    odd = {"ph": "X", "name": "b", "args": {"correlation": ["not", "a", "number"]}}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [good, odd, good]}))
    found = TraceChunks(tmp_path / "trace.json")
    (read,) = found
    assert [event.name for event in read] == ["a", "b", "a"]
    assert [event.args.correlation for event in read] == [3, None, 3]
    assert read[0].args.size == 128  # ROCm writes numbers as texts
    assert (found.odd, found.damaged) == (1, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty"),
        (b"not json", "is not a JSON object"),
        (b'{"model_type": "gpt2"}', 'JSON without "traceEvents"'),
        (b'{"traceEvents": [{"ph": "X", "name": "a"}, {"ph": "X", "na', "ends in the middle of an event"),
        (b'{"schemaVersion" 1, "traceEvents": []}', "is not JSON"),
    ],
)
def test_what_is_no_whole_trace_is_refused(tmp_path, text, message):
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=message) as caught:
        list(TraceChunks(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kept", [30, 200])
def test_a_gzip_file_that_ends_too_early_is_refused(tmp_path, kept):
    text = gzip.compress(json.dumps({"traceEvents": [{"name": str(n)} for n in range(500)]}).encode())
    (tmp_path / "trace.json.gz").write_bytes(text[:kept])
    assert is_trace(tmp_path / "trace.json.gz")
    with pytest.raises(ValueError, match="the gzip file is damaged or ends too early"):
        list(TraceChunks(tmp_path / "trace.json.gz"))
