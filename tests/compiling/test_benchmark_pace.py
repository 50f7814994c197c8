"""What a benchmark says before and while it runs, and what Ctrl-C leaves of it."""

from __future__ import annotations

import json

import pytest

from rooflight.compiling.bench import matrix as cells
from rooflight.compiling.bench.benchmark import BenchmarkInterrupted, Matrix, Pace, benchmark, programs_of
from rooflight.compiling.bench.matrix import benchmark_matrix
from rooflight.compiling.bench.result import Check, Trial
from rooflight.sampling.executor.programs import Reply
from rooflight.workloads.errors import RunFailed
from rooflight.workloads.outputs import Difference


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_programs_of_a_matrix() -> None:
    assert programs_of(1, 1) == 4
    assert programs_of(4, 2) == 4 * (1 + 2 * 3)


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


def test_programs_that_do_not_run_are_not_waited_for() -> None:
    clock, said = Clock(), []
    pace = Pace(1, 2, said.append, clock=clock)
    pace.begins("eager")
    clock.now_s += 30
    pace.ended()
    pace.begins("cold")
    pace.skips(3)
    pace.begins("cold")
    pace.skips(3)
    assert said == [
        "eager (program 1 of 7)",
        "cold (program 2 of 7, about 3 min left)",
        "cold (program 5 of 7, about 2 min left)",
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

    monkeypatch.setattr("rooflight.compiling.bench.benchmark.answered", answered)
    return script


def trial(seconds: float = 1.0) -> Trial:
    return Trial(samples_s=(seconds,) * 3)


RIGHT = Check(result=Difference())
ASKED = Matrix(
    targets=("attention-block", "mixed-operations"), modes=("default", "max-autotune"), iterations=3, warmup=1,
    bounds=False,
)  # fmt: skip


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
    programs += [trial(2.0), trial(), KeyboardInterrupt()]
    words = ("attention-block", "--mode", "default", "--mode", "max-autotune", "--iterations", 3, "--warmup", 1)
    code, out, _ = run("compile-bench", *words, "--no-bounds", "--markdown", "-")
    assert code == 130
    assert "attention-block (max-autotune): interrupted before the compiled program had run." in out
    assert "attention-block, default: interrupted before its results were compared with eager's." in out
    assert "fail" not in out


def test_ctrl_c_before_anything_was_measured_writes_no_report(programs, run) -> None:
    programs += [KeyboardInterrupt()]
    code, out, err = run("compile-bench", "attention-block", "--no-bounds")
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
        benchmark_matrix(ASKED, executor="ray")
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
