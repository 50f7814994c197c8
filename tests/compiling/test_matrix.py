"""The matrix of targets and modes: its cells, their order, what a failure costs, what is said before and while programs
run, and what Ctrl-C leaves of it.
"""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from ray_cluster import ray_cluster

from rooflight.reporting.json import render_json
from rooflight.sampling.executor.programs import Reply
from rooflight.sources.workloads.errors import RunFailed, TargetError
from rooflight.sources.workloads.outputs import Difference
from rooflight.studies.compiling.bench import matrix as cells
from rooflight.studies.compiling.bench.benchmark import BenchmarkInterrupted, Matrix, Pace, benchmark, programs_of
from rooflight.studies.compiling.bench.matrix import CellAnswer, answer_of, benchmark_matrix
from rooflight.studies.compiling.bench.result import Check, Compiled, Trial
from rooflight.studies.compiling.bench.tables import report_of

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
def test_real_cells_on_a_cluster_of_ray(tmp_path) -> None:
    (tmp_path / "steps.py").write_text(
        "import torch\n"
        "def good():\n    x = torch.ones(4)\n    return lambda: x + 1\n"
        "def bad():\n    def step():\n        raise ValueError('no data')\n    return step\n"
    )
    targets = tuple(f"{tmp_path}/steps.py:{name}" for name in ("bad", "good"))
    asked = Matrix(targets=targets, backend="eager", iterations=3, warmup=1, bounds=False)
    with ray_cluster({"num_cpus": 1}) as made:
        bad, good = benchmark_matrix(asked, executor="ray", address=made.address, progress=silent)
    assert "ValueError: no data" in bad.failed
    assert good.check is not None
    assert good.check.correct


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_programs_that_do_not_run_are_not_waited_for() -> None:
    assert [programs_of(*size) for size in ((1, 1), (4, 2))] == [4, 4 * (1 + 2 * 3)]
    clock, said = Clock(), []
    pace = Pace(1, 2, said.append, clock=clock)
    pace.begins("eager")
    clock.now_s += 30
    pace.ended()
    for _ in range(2):
        pace.begins("cold")
        pace.skips(3)
    assert said == [
        "eager (program 1 of 7)",
        "cold (program 2 of 7, about 3 min left)",
        "cold (program 5 of 7, about 2 min left)",
    ]


def test_what_is_left_is_told_from_the_programs_that_have_ended() -> None:
    clock, said = Clock(), []
    pace = Pace(2, 1, said.append, clock=clock)
    for seconds in (10, 40, 20, 30):  # eager, cold, warm, check
        pace.begins("x")
        clock.now_s += seconds
        pace.ended()
    pace.begins("y")
    assert said == [
        "x (program 1 of 8)",
        "x (program 2 of 8, about 70 s left)",  # 7 programs of 10 s
        # 2 eager took 10 s, cold 40 s; unknown kinds take their mean, 25 s: 10 + 40 + 2 * (25 + 25)
        "x (program 3 of 8, about 2 min left)",  # 150 s
        "x (program 4 of 8, about 2 min left)",  # check unknown, (10 + 40 + 20) / 3 = 23.3: 2 * 23.3 + 70 = 117 s
        "y (program 5 of 8, about 2 min left)",  # 100 s
    ]


@pytest.fixture
def programs(monkeypatch):
    """Programs without processes; the list says what each does in turn: an answer, or an error."""
    script: list[object] = []

    def answered(function, request, cache, *, threads, limit_s):
        step = script.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step

    monkeypatch.setattr("rooflight.studies.compiling.bench.benchmark.answered", answered)
    return script


def trial(seconds: float = 1.0) -> Trial:
    return Trial(samples_s=(seconds,) * 3)


RIGHT = Check(result=Difference())


def test_ctrl_c_leaves_what_was_measured(programs) -> None:
    programs += [trial(2.0), trial(), trial(), RIGHT, trial(), KeyboardInterrupt()]
    with pytest.raises(BenchmarkInterrupted) as stop:
        benchmark("attention-block", modes=("default", "max-autotune", "reduce-overhead"), iterations=3, warmup=1)
    whole, half, none = stop.value.results
    assert (whole.mode, whole.interrupted, whole.check is not None) == ("default", False, True)
    assert (half.mode, half.interrupted, half.steady_speedup, half.warm) == ("max-autotune", True, 2.0, None)
    assert (none.mode, none.interrupted, none.cold) == ("reduce-overhead", True, None)
    assert none.eager is not None


def test_ctrl_c_leaves_the_targets_before(programs, run) -> None:
    one = [trial(2.0), trial(), trial(), RIGHT]
    programs += [*one, *one[1:], KeyboardInterrupt()]
    words = ("attention-block", "mixed-operations", "--mode", "default", "--mode", "max-autotune")
    code, out, err = run("compile-bench", *words, "--iterations", 3, "--warmup", 1, "--no-bounds", "--json", "-")
    assert code == 130
    assert [(each["target"], each["verdict"]) for each in json.loads(out)] == [("attention-block", "pays")] * 2
    assert err.splitlines()[-1] == "rooflight: interrupted: the report has what was measured"


def test_ctrl_c_in_the_middle_of_a_mode_is_no_failure_in_the_report(programs, run) -> None:
    programs += [trial(2.0), trial(), KeyboardInterrupt(), KeyboardInterrupt()]
    words = ("attention-block", "--mode", "default", "--mode", "max-autotune", "--iterations", 3, "--warmup", 1)
    code, out, _ = run("compile-bench", *words, "--no-bounds", "--markdown", "-")
    assert code == 130
    assert "attention-block (max-autotune): interrupted before the compiled program had run." in out
    assert "attention-block, default: interrupted before its results were compared with eager's." in out
    assert "fail" not in out
    code, out, err = run("compile-bench", "attention-block", "--no-bounds")  # before anything was measured
    assert (code, out) == (130, "")
    assert "interrupted: nothing was left half-written" in err


def test_ctrl_c_while_bounds_are_taken(programs, monkeypatch) -> None:
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cells, "bounded", stopped)
    programs += [trial(2.0), trial(), trial(), RIGHT]
    one = Matrix(targets=("attention-block",), iterations=3, warmup=1)
    with pytest.raises(BenchmarkInterrupted) as stop:
        benchmark_matrix(one)
    (found,) = stop.value.results
    assert (found.interrupted, found.verdict) == (False, "pays")


def test_ctrl_c_while_a_cluster_works(monkeypatch) -> None:
    def replies(*_, **__):
        yield Reply(number=1, reason="its node is lost")
        raise KeyboardInterrupt

    monkeypatch.setattr(cells, "on_ray", replies)
    with pytest.raises(BenchmarkInterrupted) as stop:
        benchmark_matrix(replace(ASKED, bounds=False), executor="ray")
    assert [(each.mode, each.failed) for each in stop.value.results] == [("max-autotune", "its node is lost")]


def test_a_mode_that_fails_late_fails(programs) -> None:
    programs += [trial(2.0), trial(), RunFailed("no warm start"), trial(), trial(), RIGHT]
    failed, whole = benchmark("attention-block", modes=("default", "max-autotune"), iterations=3, warmup=1)
    assert (failed.failed, failed.cold, failed.interrupted) == ("no warm start", None, False)
    assert (whole.verdict, whole.interrupted) == ("pays", False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "4 targets in 1 mode: 16 programs, one after the other, each in a fresh process"),
        ((), "100 iterations and at most 600 s each (--quick: 20 iterations)"),
        (("--quick",), "20 iterations and at most 600 s each"),
        (
            ("--executor", "ray", "--limit", "60"),
            "4 targets in 1 mode: 4 tasks of 4 programs, 100 iterations and at most 60 s each",
        ),
    ],
)
def test_the_plan_is_said_first(run, monkeypatch, words, said) -> None:
    def stopped(*_, **__):
        raise BenchmarkInterrupted([])

    monkeypatch.setattr(cells, "benchmark_matrix", stopped)
    code, _, err = run("compile-bench", *words)
    assert code == 130
    assert said in err.splitlines()[0]
    assert ("--quick" in err) == ("--quick" not in words)
