"""``rooflight analyze FOLDER`` and several traces: the ranks of one run, with who waits for whom."""

import pytest
from kineto_traces import write_rank
from ray_cluster import ray_cluster

from rooflight.front import rank_traces
from rooflight.front.options import ReadOn
from rooflight.front.rank_traces import read_ranks


@pytest.fixture
def folder(tmp_path):
    # rank 2 computes for 50 µs, the others for 10, 20 and 30: they wait for it for 40, 30 and 20 µs per step
    for rank, computing in enumerate((10, 20, 50, 30)):
        write_rank(tmp_path / f"rank{rank}.json", rank, computing)
    return tmp_path


@pytest.fixture
def analyzed(as_json):
    return lambda *arguments: as_json("analyze", *arguments)


def test_a_folder_is_the_ranks_of_a_run(analyzed, folder):
    found = analyzed(folder)
    assert found["schema"] == "rooflight.ranks/1"
    assert (found["world_size"], found["missing_ranks"], found["slowest_rank"]) == (4, [], 2)
    waits = {each["rank"]: each for each in found["waiting"]["ranks"]}
    assert [waits[rank]["waits_s"] for rank in range(4)] == pytest.approx([40e-6, 30e-6, 0, 20e-6])
    assert waits[2]["others_wait_s"] == pytest.approx(90e-6)
    assert (waits[2]["last_in"], found["waiting"]["collectives"]) == (1, 1)
    assert [waits[rank]["longest_for"] for rank in range(4)] == [2, 2, None, 2]


def test_files_are_the_ranks_of_a_run_too(analyzed, folder):
    files = [folder / f"rank{rank}.json" for rank in (3, 0, 1, 2)]
    assert analyzed(*files)["waiting"] == analyzed(folder)["waiting"]


def test_the_report_says_who_waits_for_whom(ok, folder):
    out = ok("analyze", folder)
    text = " ".join(out.split())
    assert f"{folder.name} on H100-SXM5-80GB, 4 ranks" in text
    assert "arrives last rank 2, in 1 of 1 collectives" in text
    assert "did not run the same" not in text


def test_missing_ranks_are_named(analyzed, ok, folder):
    (folder / "rank1.json").unlink()
    (folder / "rank2.json").unlink()
    assert analyzed(folder)["missing_ranks"] == [1, 2]
    assert "No session of ranks 1, 2" in " ".join(ok("analyze", folder).split())


def test_names_tell_ranks_that_traces_do_not(analyzed, tmp_path):
    for rank, computing in enumerate((10, 20, 50, 30)):
        write_rank(tmp_path / f"17.5-TP-{rank}-DECODE.trace.json", None, computing)
    assert analyzed(tmp_path)["slowest_rank"] == 2
    assert analyzed(*sorted(tmp_path.iterdir()))["slowest_rank"] == 2


def test_a_folder_with_one_trace_is_that_trace(analyzed, ok, tmp_path):
    write_rank(tmp_path / "only.json", None, 10)
    found = analyzed(tmp_path)
    assert found["schema"] == "rooflight.analysis/1"
    assert "the only trace was taken: only.json" in " ".join(ok("analyze", tmp_path).split())


def test_processes_read_what_this_one_reads(folder):
    told = []
    here = read_ranks([str(folder)], None, ReadOn(), told.append)
    assert told[-1].startswith("reading rank 3, 100%")
    there = read_ranks([str(folder)], None, ReadOn(processes=2), told.append)
    assert told[-1].endswith("is read, 4 of 4")
    assert there.names == here.names
    for one, other in zip(there.sessions, here.sessions, strict=True):
        assert one.environment == other.environment
        assert one.signatures == other.signatures
        assert (one.measurement.op_samples_s == other.measurement.op_samples_s).all()


def test_a_process_that_cannot_read_says_so(folder):
    text = (folder / "rank2.json").read_text()
    (folder / "rank2.json").write_text(text[:1000])
    with pytest.raises(ValueError, match=r"rank2.json ends in the middle of an event"):
        read_ranks([str(folder)], None, ReadOn(processes=2), print)


def test_a_process_that_dies_is_named(folder, monkeypatch):
    monkeypatch.setattr(rank_traces, "_TASK", ("-c", "raise SystemExit(137)"))
    with pytest.raises(RuntimeError, match=r"the process that read .*rank\d.json died, perhaps because memory ran out"):
        read_ranks([str(folder)], None, ReadOn(processes=2), print)


@pytest.fixture
def cluster():
    with ray_cluster(head_cpus=2) as made:
        yield made


@pytest.mark.slow
def test_a_cluster_reads_what_this_process_reads(folder, cluster):
    on = ReadOn(executor="ray", address=cluster.address)
    there = read_ranks([str(folder)], None, on, lambda text: None)
    here = read_ranks([str(folder)], None, ReadOn(), lambda text: None)
    assert [one.environment for one in there.sessions] == [one.environment for one in here.sessions]
    assert [one.signatures for one in there.sessions] == [one.signatures for one in here.sessions]
    text = (folder / "rank2.json").read_text()
    (folder / "rank2.json").write_text(text[:1000])
    with pytest.raises(ValueError, match=r"rank2.json ends in the middle of an event"):
        read_ranks([str(folder)], None, on, lambda text: None)
