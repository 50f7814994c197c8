"""Files that are no trace: one line says what each is and what to give, whatever its name; and what still is one."""

import cProfile
import gzip
import io
import json
import pickle
import zipfile

import pytest
import torch
from builders import op as make_op
from kineto_traces import op, span, write
from sessions import Call, session_of

from rooflight.sources.traces.file.kinds import foreign


def pstats(path):
    profile = cProfile.Profile()
    profile.runcall(sorted, [2, 1])
    profile.dump_stats(path)


def zipped(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("trace.json", "{}")


def saved_as_before(path):
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)


GRAPH = '{\n  "schema": "1.0.1", "pid": 1, "time": "2023-07-12 12:47:27", "start_ts": 6,\n  "nodes": []}'
PERFETTO = b"\x0a\x1c\x10\x01\x18\x05\x52\x00" + bytes(30)
TABLE = "-----------------  ------------  \n           Name    Self CPU %  \n-----------------  ------------  \n"
FILES = {  # what writes it, and what is said
    "time.prof": (pstats, "a profile of cProfile"),
    "pstats.json": (pstats, "a profile of cProfile"),
    "model.pt": (lambda path: torch.save({"w": torch.ones(2)}, path), "a file of torch.save"),
    "old.pt": (saved_as_before, "a file of torch.save"),
    "traces.zip": (zipped, "a zip archive, not JSON or gzip: unpack it first (unzip)"),
    "trace.json.zip": (zipped, "a zip archive, not JSON or gzip: unpack it first (unzip)"),
    "report.ncu-rep": (b"NVR\0" + bytes(40), "a report of Nsight Compute"),
    "report": (b"NVR\0" + bytes(40), "a report of Nsight Compute"),
    "report.nsys-rep": (b"\1\2\3", "export it with nsys export --type sqlite report.nsys-rep"),
    "vm.xplane.pb": (PERFETTO, "an XPlane profile"),
    "trace.perfetto-trace": (PERFETTO, "a Perfetto trace"),
    "trace.bin": (PERFETTO, "in protobuf, as profiles of Perfetto and XLA"),
    "trace.pb.gz": (gzip.compress(PERFETTO), "in protobuf"),
    "events.out.tfevents.1.vm": (bytes(40), "an event file of TensorBoard"),
    "stacks.json": ('{"$schema": "https://www.speedscope.app/file-format-schema.json"}', "a profile of speedscope"),
    "stacks.json.gz": (gzip.compress(b'{"$schema":"https://www.speedscope.app/x"}'), "a profile of speedscope"),
    "memory.html": ("<html><head><title>GPU Memory Timeline HTML</title>", "a web page"),
    "memory.json": ("[[1796, 1797], [[0, 1], [2, 3]]]", "a memory timeline"),
    "memory.raw.json.gz": (gzip.compress(b"[[-1, 1, 524288, 0]]"), "a memory timeline"),
    "stacks.txt": ("train.py(3):_main 1\ntrain.py(3):_main;torch/nn.py(9):_f 12\n", "stacks for a flame graph"),
    "table.txt": (TABLE, "a table of the profiler's averages"),
    "et.json": (GRAPH, "an execution trace of PyTorch"),
    "et.json.gz": (gzip.compress(GRAPH.encode()), "--execution-trace et.json.gz"),
    "perf.data": (b"PERFILE2" + bytes(9), "a profile of perf"),
    "none.json": ("", "empty: record it again, or give a trace"),
    "none.session": ("\n", "empty: record it again"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_a_file_is_and_what_to_give_is_said_in_one_line(tmp_path, run, name):
    content, said = FILES[name]
    path = tmp_path / name
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = run("analyze", path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert f"{name} is " in err
    assert said in err
    assert "cut off" not in err


@pytest.mark.parametrize("name", ["snapshot.pickle", "snapshot.dump", "snapshot.json"])
def test_a_snapshot_of_memory_is_read_whatever_its_name(tmp_path, run, name):
    segments = [{"device": 0, "address": 0, "total_size": 100,
                 "blocks": [{"size": 60, "state": "active_allocated", "address": 0, "frames": []}]}]  # fmt: skip
    data = {"segments": segments, "device_traces": []}
    (tmp_path / name).write_bytes(json.dumps(data).encode() if name.endswith("json") else pickle.dumps(data))
    code, out, _ = run("analyze", tmp_path / name)
    assert code == 0
    assert "At most 60.0 B were allocated" in out


def test_a_session_is_none_of_them(tmp_path):
    path = session_of([Call(op=make_op("aten::relu"))]).save(tmp_path / "a.session")
    assert foreign(path) == ""
    path.write_bytes(b"PK\x03\x04" + bytes(26) + b"header.json\x01\xff/data\x02")  # whatever its packed bytes are
    assert foreign(path) == ""


def test_other_pickles_are_refused_unread(tmp_path, run):
    (tmp_path / "a.bin").write_bytes(pickle.dumps(io.BytesIO))
    code, _, err = run("analyze", tmp_path / "a.bin")
    assert code == 2
    assert "could run code" in err


@pytest.mark.parametrize("name", ["trace.perfetto-trace", "x.ncu-rep", "step.trace", "trace", "trace.txt"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_is_one_whatever_its_name(tmp_path, run, name, packed):
    path = write(tmp_path / name, [op("aten::relu", 0, 5, dims=[[8]], types=["float"])])
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    code, out, _ = run("analyze", path, "--device", "H100-SXM5-80GB")
    assert code == 0
    assert "relu" in out


def test_a_trace_of_threads_that_were_not_profiled_says_so(tmp_path, run):
    _, _, err = run("analyze", write(tmp_path / "trace.json", [span("PyTorch Profiler (0)", 0, 9, cat="Trace")]))
    assert "or it ran in other threads" in err
