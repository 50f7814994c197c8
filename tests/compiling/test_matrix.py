"""The matrix of targets and modes: its cells, their order, and what a failure costs."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from rooflight.compiling.bench import matrix as cells
from rooflight.compiling.bench.benchmark import Matrix
from rooflight.compiling.bench.matrix import CellAnswer, answer_of, benchmark_matrix
from rooflight.compiling.bench.result import Compiled, Trial
from rooflight.compiling.bench.tables import report_of
from rooflight.reporting.json import render_json
from rooflight.sampling.executor.programs import Reply
from rooflight.workloads.errors import RunFailed, TargetError

ASKED = Matrix(
    targets=("attention-block", "mixed-operations"), modes=("default", "max-autotune"), iterations=3, warmup=1
)


def result(target: str, mode: str, eager_s: float = 2.0) -> Compiled:
    return Compiled(
        target=target, mode=mode, warmup=1, eager=Trial(samples_s=(eager_s,) * 3), cold=Trial(samples_s=(1.0,) * 3)
    )


def silent(text: str) -> None:
    pass


def test_the_cells_are_by_target_then_by_mode() -> None:
    assert [(cell.targets, cell.modes) for cell in ASKED.cells] == [
        (("attention-block",), ("default",)),
        (("attention-block",), ("max-autotune",)),
        (("mixed-operations",), ("default",)),
        (("mixed-operations",), ("max-autotune",)),
    ]
    assert msgspec.json.decode(msgspec.json.encode(ASKED), type=Matrix) == ASKED


@pytest.fixture
def on_a_cluster(monkeypatch):
    """Replies in reverse order; the second cell's node is lost, and the third one's program breaks."""

    def replies(module, requests, *, address, progress):
        asked = [msgspec.json.decode(request, type=Matrix) for request in requests]
        answers = [
            CellAnswer(result=result(cell.targets[0], cell.modes[0], number + 2)) for number, cell in enumerate(asked)
        ]
        answers[2] = CellAnswer(failed="the step failed: ValueError: no data")
        for number in (3, 2, 0):
            yield Reply(number=number, reply=msgspec.json.encode(answers[number]))
        yield Reply(number=1, reason="its task was lost: NodeDiedError")

    monkeypatch.setattr(cells, "on_ray", replies)


@pytest.mark.usefixtures("on_a_cluster")
def test_results_are_in_order_and_a_failure_costs_its_cell() -> None:
    found = benchmark_matrix(ASKED, executor="ray", progress=silent)
    assert [(each.target, each.mode) for each in found] == [(cell.targets[0], cell.modes[0]) for cell in ASKED.cells]
    assert [each.steady_speedup for each in found] == [2, None, None, 5]
    assert [each.failed for each in found] == [
        "", "its task was lost: NodeDiedError", "the step failed: ValueError: no data", "",
    ]  # fmt: skip
    report = report_of(found)
    lost = json.loads(render_json(report))[1]
    assert lost["eager_s"] is lost["compiled_s"] is lost["verdict"] is lost["warmup_eager_s"] is None
    assert lost["failed"] == "its task was lost: NodeDiedError"
    assert "attention-block (max-autotune) does not run: its task was lost" in report.conclusion


def test_where_nothing_ran_the_first_failure_is_the_error(monkeypatch) -> None:
    def lost(module, requests, *, address, progress):
        return (Reply(number=number, reason=f"node {number} is lost") for number in range(len(requests)))

    monkeypatch.setattr(cells, "on_ray", lost)
    with pytest.raises(RunFailed, match="node 0 is lost"):
        benchmark_matrix(ASKED, executor="ray", progress=silent)


def test_here_too_a_target_that_breaks_costs_only_its_cells(monkeypatch) -> None:
    def measured(cell, progress, pace):
        if cell.targets == ("attention-block",):
            raise TargetError("it is a generator")
        return [result(cell.targets[0], mode) for mode in cell.modes]

    monkeypatch.setattr(cells, "measure_cell", measured)
    found = benchmark_matrix(ASKED, progress=silent)
    assert [each.failed for each in found] == ["it is a generator", "it is a generator", "", ""]
    with pytest.raises(TargetError, match="it is a generator"):
        benchmark_matrix(replace(ASKED, targets=("attention-block",)), progress=silent)


def test_bounds_that_fail_cost_nothing_that_was_measured(tmp_path, monkeypatch) -> None:
    """The file is gone when the programs have run, so that its step cannot be recorded."""
    target = f"{tmp_path}/gone.py:step"
    monkeypatch.setattr(cells, "measured", lambda *_, **__: (result(target, "default"), result(target, "max-autotune")))
    measured = cells.measure_cell(replace(ASKED, targets=(target,)), silent)
    assert [each.steady_speedup for each in measured] == [2, 2]
    assert [each.bounds_failed for each in measured] == [f"no file {tmp_path}/gone.py"] * 2
    report = report_of(measured)
    assert (
        f"gone.py:step, default: no bounds, and no ops and bytes of eager's: no file {tmp_path}/gone.py."
        in report.notes
    )
    first, _ = json.loads(render_json(report))
    assert (first["verdict"], first["bounds_failed"]) == ("pays", f"no file {tmp_path}/gone.py")
    assert first["op_bound_s"] is first["fused_bound_s"] is first["op_kernels"] is first["op_bytes"] is None


def test_a_reply_of_another_version(monkeypatch) -> None:
    monkeypatch.setattr(cells, "on_ray", lambda *_, **__: [Reply(number=0, reply=b'{"result": 3}')])
    one = replace(ASKED, targets=("attention-block",), modes=("default",))
    with pytest.raises(RunFailed, match="its node wrote no result of this version"):
        benchmark_matrix(one, executor="ray", progress=silent)


def test_paths_do_not_depend_on_the_folder(tmp_path, monkeypatch) -> None:
    (tmp_path / "train.py").write_text("def make_step():\n    return lambda: None\n")
    monkeypatch.chdir(tmp_path)
    cell = replace(ASKED, targets=("train.py:make_step",), modes=("default",))
    assert cells._anywhere(cell).targets == (f"{tmp_path}/train.py:make_step",)
    assert cells._anywhere(ASKED.cells[0]) == ASKED.cells[0]


def test_the_program_of_a_cell_answers_errors(tmp_path) -> None:
    cell = Matrix(targets=(str(tmp_path / "no.py:step"),), iterations=3, warmup=1)
    (tmp_path / "request").write_bytes(msgspec.json.encode(cell))
    cells._main([str(tmp_path / "request"), str(tmp_path / "reply")])
    answer = msgspec.json.decode((tmp_path / "reply").read_bytes(), type=CellAnswer)
    assert answer == answer_of(cell)
    assert answer.failed.startswith("no file")


@pytest.mark.slow  # nodes start on this machine
@pytest.mark.filterwarnings("ignore")
def test_real_cells_on_a_cluster_of_ray(tmp_path, monkeypatch) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("psutil")
    from ray.cluster_utils import Cluster

    (tmp_path / "steps.py").write_text(
        "import torch\n"
        "def good():\n    x = torch.ones(4)\n    return lambda: x + 1\n"
        "def bad():\n    def step():\n        raise ValueError('no data')\n    return step\n"
    )
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
    made.add_node(num_cpus=1, object_store_memory=80 << 20)
    made.wait_for_nodes()
    asked = Matrix(
        targets=tuple(f"{tmp_path}/steps.py:{name}" for name in ("bad", "good")),
        backend="eager", iterations=3, warmup=1, bounds=False,
    )  # fmt: skip
    try:
        bad, good = benchmark_matrix(asked, executor="ray", address=made.address, progress=silent)
    finally:
        ray.shutdown()
        made.shutdown()
    assert "ValueError: no data" in bad.failed
    assert good.check is not None
    assert good.check.correct
