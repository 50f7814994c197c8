"""Profiles of AMD's tools and of Ascend's: tables and events that name their facts otherwise."""

import csv
import json
import sqlite3

import pytest
from kineto_traces import op, write

import rooflight as rl

NAME = "Cijk_Ailk_Bljk_HHS_BH_MT64x64"
OLD = ("Index", "KernelName", "gpu-id", "queue-id", "BeginNs", "EndNs", "DurationNs")
NEW = ("Kind", "Agent_Id", "Queue_Id", "Kernel_Name", "Correlation_Id", "Start_Timestamp", "End_Timestamp")
RPD = """
CREATE TABLE rocpd_op(id INTEGER, gpuId INTEGER, queueId INTEGER, start INTEGER, end INTEGER, name TEXT, kind TEXT);
CREATE VIEW op AS SELECT id, gpuId, queueId, start, end, name AS description, kind AS opType FROM rocpd_op;
INSERT INTO rocpd_op VALUES (1, 2, 0, 1000, 7000, 'Cijk_Ailk_Bljk_HHS_BH_MT64x64', 'KernelExecution');
INSERT INTO rocpd_op VALUES (2, 2, 0, 9000, 10000, '', 'CopyHostToDevice');
"""
ROCPD = """
CREATE TABLE rocpd_info_agent(id INTEGER, type TEXT, product_name TEXT);
CREATE TABLE rocpd_kernel_dispatch(id INTEGER, agent INTEGER, queue INTEGER, start INTEGER, end INTEGER, name TEXT);
CREATE VIEW kernels AS
SELECT id, agent AS agent_abs_index, queue AS queue_id, start, end, name FROM rocpd_kernel_dispatch;
INSERT INTO rocpd_info_agent VALUES (0, 'CPU', 'EPYC'), (1, 'GPU', 'AMD Instinct MI300X');
INSERT INTO rocpd_kernel_dispatch VALUES (1, 1, 3, 1000, 7000, 'Cijk_Ailk_Bljk_HHS_BH_MT64x64');
"""


def table(path, header, row):
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_NONNUMERIC).writerows([header, row])


def database(path, script):
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


def tool_json(path):
    dispatch = {"agent_id": {"handle": 7}, "queue_id": {"handle": 3}, "kernel_id": 5}
    process = {
        "agents": [{"type": 1, "product_name": "EPYC"}, {"type": 2, "product_name": "AMD Instinct MI300X"}],
        "kernel_symbols": [{"kernel_id": 5, "formatted_kernel_name": NAME}],
        "buffer_records": {
            "kernel_dispatch": [{"start_timestamp": 1000, "end_timestamp": 7000, "dispatch_info": dispatch}]
        },
    }
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))


def chrome(path):
    args = {"BeginNs": "1000", "EndNs": "7000", "dev-id": "0", "queue-id": "1", "Name": NAME}
    event = {"ph": "X", "name": NAME, "ts": "1", "dur": "6", "pid": 6, "tid": 0, "args": args}
    call = {**event, "name": "hipLaunchKernel", "pid": 2, "dur": "1", "args": {"BeginNs": "1000", "EndNs": "2000"}}
    path.write_text(json.dumps({"traceEvents": [call, event]}))


PROFILES = {
    "results.csv": lambda path: table(path, OLD, (0, NAME, 4, 0, 1000, 7000, 6000)),
    "1_kernel_trace.csv": lambda path: table(path, NEW, ("KERNEL_DISPATCH", "Agent 4", 1, NAME, 1, 1000, 7000)),
    "trace.rpd": lambda path: database(path, RPD),
    "1_results.db": lambda path: database(path, ROCPD),
    "1_results.json": tool_json,
    "results.json": chrome,
}


@pytest.mark.parametrize("name", PROFILES)
def test_kernels_have_their_names_and_times(tmp_path, run, name):
    path = tmp_path / name
    PROFILES[name](path)
    timeline = rl.read_trace(path).measurement.timeline
    assert [(each.name, each.count, each.seconds) for each in timeline.kernels] == [(NAME, 1, pytest.approx(6e-6))]
    code, out, _ = run("analyze", path)
    assert code == 0
    assert "no op on the host that launched it" in " ".join(out.split())


def test_copies_and_the_gpu_are_known(tmp_path):
    database(tmp_path / "trace.rpd", RPD)
    assert rl.read_trace(tmp_path / "trace.rpd").measurement.timeline.copy_s == pytest.approx(1e-6)
    database(tmp_path / "1.db", ROCPD)
    assert rl.read_trace(tmp_path / "1.db").environment["gpu"] == "AMD Instinct MI300X"


@pytest.mark.parametrize(
    "text",
    [
        '{"rocprofiler-sdk-tool": 5}',
        '{"rocprofiler-sdk-tool": [{"kernel_symbols": []}]}',
        '{"rocprofiler-sdk-tool": [',
        '"KernelName","BeginNs","EndNs"\n',
        '"KernelName","BeginNs","EndNs"\n"k","soon","later"\n"k",9,1\n',
    ],
)
def test_damaged_tables_are_one_line(tmp_path, run, text):
    path = tmp_path / ("a.json" if text[0] == "{" else "a.csv")
    path.write_text(text)
    code, _, err = run("analyze", path)
    assert code == 2
    assert err.count("\n") == 1
    assert path.name in err


def test_other_tables_say_what_to_give(tmp_path, run):
    (tmp_path / "a.csv").write_text('"Name","Calls"\n"k",5\n')
    code, _, err = run("analyze", tmp_path / "a.csv")
    assert code == 2
    assert "a.csv is a table: give" in err


def test_tasks_of_ascend_belong_to_their_ops(tmp_path):
    def event(name, start, stop, **args):
        return {"ph": "X", "name": name, "pid": 9, "tid": 1, "ts": start, "dur": stop - start, "args": args}

    mm = op("aten::mm", 0, 10, dims="4,8;8,2", types="float;float")
    call = {**event("AscendCL@aclnnMm", 2, 4, connection_id=5), "pid": mm["pid"], "tid": mm["tid"]}
    task = {"Task Type": "AI_CORE", "Physic Stream Id": 2, "connection_id": 5}
    waits = event("EVENT_WAIT", 20, 90, **{**task, "Task Type": "EVENT_WAIT"})
    session = rl.read_trace(write(tmp_path / "t.json", [mm, call, event("MatMul", 5, 11, **task), waits]))
    (record,) = session.records
    assert (record.signature.name, record.times_s) == ("aten::mm", pytest.approx((6e-6,)))
    assert [each.shape for each in record.signature.inputs] == [(4, 8), (8, 2)]
