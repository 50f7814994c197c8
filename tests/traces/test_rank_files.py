"""Which files of a folder are the ranks of one run."""

import gzip
import json

import pytest

from rooflight.sources.traces.file.discovery import ranks_in, ranks_of, traces_in


def trace(path, rank=None, size=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": size}}
    text = json.dumps({"schemaVersion": 1, **info, "traceEvents": []}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def names(found):
    return {file.rank: file.path.name for file in found.files}


NAMED = {  # as torch's users, Megatron, torchtitan, vLLM and SGLang name them
    "rank": ["rank0.json", "rank1.json", "rank10.json", "rank2.json"],
    "rank-": ["rank-0.json.gz", "rank-1.json.gz"],
    "rank_": ["trace_rank_0_step_5.json", "trace_rank_1_step_5.json"],
    "vLLM": [
        "vm_4711.rank0.1720000000000000000.pt.trace.json.gz",
        "vm_4712.rank1.1720000000000000009.pt.trace.json.gz",
    ],
    "vLLM of today": [
        "dp0_pp0_tp0_dcp0_ep0_rank0.1720000000000000000.pt.trace.json.gz",
        "dp0_pp0_tp1_dcp0_ep1_rank1.1720000000000000007.pt.trace.json.gz",
    ],
    "SGLang": ["1723467890.12-TP-0.trace.json.gz", "1723467890.12-TP-1.trace.json.gz"],
    "SGLang's stages": ["1723467890.12-TP-0-DECODE.trace.json.gz", "1723467890.12-TP-1-DECODE.trace.json.gz"],
}


@pytest.mark.parametrize("files", NAMED.values(), ids=NAMED.keys())
@pytest.mark.parametrize("says", [True, False])
def test_ranks_are_found_in_traces_or_in_names(tmp_path, files, says):
    by_name = {0: files[0], 1: files[1]} if len(files) == 2 else {0: files[0], 1: files[1], 2: files[3], 10: files[2]}
    for rank, name in by_name.items():
        trace(tmp_path / name, *((rank, max(by_name) + 1) if says else ()))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')  # no trace
    found = ranks_in(tmp_path)
    assert names(found) == by_name
    assert {file.world_size for file in found.files} == {max(by_name) + 1}
    assert found.notes == ()


def test_of_several_steps_the_last_is_taken_and_of_several_runs_the_one_with_most_ranks(tmp_path):
    for step in (9, 10):
        for rank in range(2):
            trace(tmp_path / "steps" / f"step{step}" / f"rank{rank}.json", rank, 2)
    found = ranks_in(tmp_path / "steps")
    assert {file.path.parent.name for file in found.files} == {"step10"}
    (note,) = found.notes
    assert "rank0.json and those of 1 other rank were taken, 2 others were not" in note
    for stage, ranks in (("DECODE", 3), ("EXTEND", 2)):
        for rank in range(ranks):
            trace(tmp_path / "runs" / f"17.5-TP-{rank}-{stage}.trace.json.gz", rank, 3)
    assert names(ranks_in(tmp_path / "runs")) == {rank: f"17.5-TP-{rank}-DECODE.trace.json.gz" for rank in range(3)}
    for name in ("TP-0-PP-0", "TP-1-PP-0", "TP-0-PP-1", "TP-1-PP-1"):  # later stages of a pipeline come after
        trace(tmp_path / "pipeline" / f"1.5-{name}.trace.json.gz")
    assert names(ranks_in(tmp_path / "pipeline"))[2] == "1.5-TP-0-PP-1.trace.json.gz"
    trace(tmp_path / "alone" / "bert.json")
    assert names(ranks_in(tmp_path / "alone")) == {None: "bert.json"}


ODD = {  # ranks that the traces state, under any name
    "letters": ["trace_abc.json", "trace_xyz.json", "trace_kkk.json"],
    "hashes": ["Base - 220ff-rank0-t.json.gz", "Base - 6bd4b-rank1-t.json.gz", "Base - 8ad3d-rank2-t.json.gz"],
    "folders": ["a/trace.json", "b/trace.json", "c/other.json"],
    "other ranks": ["rank7.json", "rank5.json", "x.json"],
    "workers": ["vm_1.1720000000000.pt.trace.json", "vm_2.1720000000009.pt.trace.json", "odd.json"],
}


@pytest.mark.parametrize("files", ODD.values(), ids=ODD.keys())
def test_traces_that_state_different_ranks_are_one_run(tmp_path, files):
    for rank, name in enumerate(files):
        trace(tmp_path / name, rank, 8)
    found = ranks_in(tmp_path)
    assert names(found) == {rank: name.split("/")[-1] for rank, name in enumerate(files)}
    assert {file.world_size for file in found.files} == {8}
    assert found.notes == ()


def test_of_two_runs_under_names_with_hashes_one_is_taken(tmp_path):
    for run, hashes in (("a", ("220ff", "6bd4b")), ("b", ("8ad3d", "c01bc"))):
        for rank, part in enumerate(hashes):
            trace(tmp_path / f"{run}-{part}-rank{rank}.json", rank, 2)
    found = ranks_in(tmp_path)
    assert names(found) == {0: "b-8ad3d-rank0.json", 1: "b-c01bc-rank1.json"}
    assert "2 others were not" in found.notes[0]
    for rank in range(2):  # a folder per rank, in two folders of steps
        for step in range(2):
            trace(tmp_path / "deep" / f"step{step}" / f"rank_{rank}" / "trace.json", rank, 2)
    found = ranks_in(tmp_path / "deep")
    assert [file.path.parts[-3] for file in found.files] == ["step1", "step1"]


def test_of_several_cycles_of_workers_the_last_of_each_is_taken(tmp_path):
    for rank in range(2):
        for cycle in (5, 7, 600):
            trace(tmp_path / "two" / f"node{rank}_{100 + rank}.{10**12 + cycle * 1000 + rank}.pt.trace.json", rank, 2)
    found = ranks_in(tmp_path / "two")
    assert names(found) == {rank: f"node{rank}_{100 + rank}.{10**12 + 600_000 + rank}.pt.trace.json" for rank in (0, 1)}
    assert "4 others were not" in found.notes[0]
    for cycle in (999, 1000):
        trace(tmp_path / "one" / f"laptop_4711.{cycle * 10**9}.pt.trace.json")
    found = ranks_in(tmp_path / "one")
    assert [file.path.name for file in found.files] == ["laptop_4711.1000000000000.pt.trace.json"]
    assert "has 2 traces of one worker" in found.notes[0]


def test_traces_of_no_rank_are_refused(tmp_path):
    for name in ("bert.json", "vit.json", "rank0.json"):
        trace(tmp_path / name)
    with pytest.raises(ValueError, match=r"3 traces, of which 2 have no rank \(bert.json, vit.json\): give one trace"):
        ranks_in(tmp_path)


@pytest.mark.parametrize("inside", [[], ["notes.txt"], ["config.json"]])
def test_a_folder_without_traces_is_refused(tmp_path, inside):
    for name in inside:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=r"has no traces \(files \*.json or \*.json.gz"):
        ranks_in(tmp_path)


def test_files_beside_the_traces_are_passed_over(tmp_path):
    trace(tmp_path / "rank0.json", 0, 1)
    (tmp_path / "et.json.gz").write_bytes(gzip.compress(b'{"schema": "1.0.1", "pid": 1, "nodes": []}'))
    (tmp_path / "memory.json.gz").write_bytes(gzip.compress(b"[[1, 2], [[3, 4]]]"))
    assert names(ranks_in(tmp_path)) == {0: "rank0.json"}


def test_links_in_a_circle_do_no_harm(tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "outside").symlink_to(tmp_path)
    (tmp_path / "me.json").symlink_to(tmp_path / "me.json")
    assert traces_in(tmp_path) == []
    trace(tmp_path / "inside" / "rank0.json", 0, 1)
    assert [path.name for path in traces_in(tmp_path)] == ["rank0.json"]


def test_a_damaged_rank_is_named(tmp_path):
    trace(tmp_path / "rank0.json.gz", 0, 2)
    (tmp_path / "rank1.json.gz").write_bytes(gzip.compress(bytes(range(128, 256))))
    with pytest.raises(ValueError, match=r"rank1.json.gz is not a JSON object"):
        ranks_in(tmp_path)


@pytest.mark.parametrize("info", [{"rank": 3, "world_size": 2}, {"rank": "0", "world_size": 2}, {"rank": 0}, [], None])
def test_ranks_that_cannot_be_are_none(tmp_path, info):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": []}))
    assert ranks_of([path])[0].rank is None
