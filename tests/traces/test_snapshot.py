"""Snapshots of CUDA's allocator: by hand, cut, hostile, and of other forms."""

import json
import os
import pickle
import random
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import rooflight as rl
from rooflight.sources.traces.file.snapshot import read_snapshots

MINE = [{"filename": "/lib/python3.12/torch/nn/functional.py", "line": 9, "name": "linear"},
        {"filename": "/site-packages/torch/x.py", "line": 1, "name": "f"},
        {"filename": "/home/ada/work/train.py", "line": 12, "name": "main"}]  # fmt: skip
OTHER = [{"filename": "/home/ada/work/train.py", "line": 20, "name": "main"}]
SEGMENTS = [
    {"device": 0, "address": 0, "total_size": 100, "stream": 0, "blocks": [
        {"size": 60, "state": "active_allocated", "address": 7, "frames": MINE},
        {"size": 40, "state": "inactive", "address": 67},
    ]},
]  # fmt: skip
# 30 B were there before the trace; the peak is 30 + 60 + 50
EVENTS = [
    {"action": "segment_alloc", "addr": 0, "size": 100}, {"action": "alloc", "addr": 7, "size": 60, "frames": MINE},
    {"action": "alloc", "addr": 80, "size": 50, "frames": OTHER}, {"action": "free_requested", "addr": 80, "size": 50},
    {"action": "free_completed", "addr": 80, "size": 50}, {"action": "free_requested", "addr": 99, "size": 30},
    {"action": "segment_free", "addr": 500, "size": 40},
]  # fmt: skip


def written(tmp_path, data, name="one.pickle"):
    path = tmp_path / name
    path.write_bytes(pickle.dumps(data) if name.endswith("pickle") else json.dumps(data).encode())
    return path


def test_the_peak_and_who_asked_for_it(tmp_path):
    (found,) = read_snapshots(written(tmp_path, {"segments": SEGMENTS, "device_traces": [EVENTS], "other": 1}))
    assert (found.allocated_bytes, found.reserved_bytes, found.peak_bytes) == (60, 100, 140)
    assert found.peak_reserved_bytes == 140
    assert [(each.owner.where.at, each.bytes) for each in found.rows] == [
        ("work/train.py:12", 60), ("work/train.py:20", 50), ("", 30),
    ]  # fmt: skip


def test_segments_alone_as_json(tmp_path):
    (found,) = read_snapshots(written(tmp_path, SEGMENTS, "one.json"))
    assert (found.peak_bytes, found.events) == (60, 0)


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/was_run",)


@pytest.mark.parametrize("data", [Hostile(), {"segments": [Hostile()]}, {"segments": 3}, [], 7, "text",
                                  {"segments": [{"total_size": "much"}]}])  # fmt: skip
def test_what_is_no_snapshot_is_refused_and_not_run(tmp_path, data):
    path = written(tmp_path, data)
    if data == []:
        assert read_snapshots(path) == ()
        return
    with pytest.raises(ValueError, match="is no snapshot of CUDA's allocator that can be read"):
        read_snapshots(path)
    assert not Path("/tmp/was_run").exists()


def test_cut_and_spoilt_files(tmp_path):
    whole = pickle.dumps({"segments": SEGMENTS, "device_traces": [EVENTS]})
    path, turns = tmp_path / "cut.pickle", random.Random(0)
    for length in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="no snapshot"):
            read_snapshots(path)
    for _ in range(300):
        spoilt = bytearray(whole)
        spoilt[turns.randrange(len(spoilt))] = turns.randrange(256)
        path.write_bytes(bytes(spoilt))
        with suppress(ValueError):
            read_snapshots(path)


def test_beside_a_session(tmp_path, ok):
    path = written(tmp_path, {"segments": SEGMENTS, "device_traces": [EVENTS]})
    alone = ok("analyze", path)
    assert "At most 140 B were allocated on device 0; 140 B were reserved." in alone
    assert "work/train.py:12" in alone
    net = torch.nn.Linear(4, 4)
    with rl.record(net, memory=True) as recording:
        net(torch.ones(2, 4))
    session = recording.session.save(tmp_path / "one.session")
    both = ok("analyze", path, session, "--device", "H100-SXM5-80GB")
    assert "against the" in both
    assert "what differs most first" in both
