"""What follows from times: speed-ups, cost, break-even and verdict, by hand arithmetic; stages of compiling."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from rooflight.reporting.json import render_json
from rooflight.reporting.renderers import find
from rooflight.sources.workloads.outputs import Difference
from rooflight.studies.compiling.bench.result import BreakEven, Check, Compiled, CompileDocument, Trial, short_names
from rooflight.studies.compiling.bench.tables import conclusion, report_of
from rooflight.studies.compiling.torch_logs import of_metrics


def result(eager: list[float], cold: list[float], warmup: int = 2, **more) -> Compiled:
    first, then = (Trial(samples_s=tuple(samples)) for samples in (eager, cold))
    return Compiled(target="it", mode="default", warmup=warmup, eager=first, cold=then, warm=then, **more)


def test_times_by_hand() -> None:
    # eager 4 s an iteration; compiled 10 + 1 s of warm-up, then 1 s
    found = result([4.0] * 6, [10, 1, 1, 1, 1, 1])
    assert (found.steady_speedup, found.total_speedup, found.verdict) == (4, 24 / 15, "pays")
    assert found.compile_s == 9  # 11 s of warm-up, of which 2 would have been work
    # quartiles that overlap: eager's are 1 and 3 s, compiled 1.5 s: gains of 1.5 and of -0.5 s for 10 s lost
    found = result([1, 1, 1, 3, 1, 3], [11, 1, 1.5, 1.5, 1.5, 1.5])
    assert (found.break_even.low, found.break_even.high) == (2 + 7, None)


def test_a_result_prints_as_the_table_of_costs_and_gains(capsys) -> None:
    # 8 s of eager warm-up, 11 s of compiled
    found = result([4.0] * 6, [10, 1, 1, 1, 1, 1])
    head, row = repr(found).splitlines()
    assert head.split("  ")[0] == "target"
    assert row.split() == ["it", "default", "1.38", "x", "eager", "4", "x", "1.6", "x", "3", "over", "3", "iterations"]
    found.show()
    shown = capsys.readouterr().out
    assert "What compiling costs and brings" in shown
    assert "1.38 x eager" in shown
    assert str(found) == repr(found)
    assert [table.id for table in report_of([found]).tables][:2] == ["results", "summary"]


@pytest.mark.parametrize(
    ("eager", "compiled", "even", "verdict"),
    [
        # behind by 6, 3, 0 s: ahead from the third on
        ([4.0] * 6, [10, 1, 1, 1, 1, 1], BreakEven(iterations=3, measured=True, low=3, high=3), "pays"),
        # beyond what ran: 100 s lost in the warm-up of 2, 2 s gained in each iteration: after 2 + 50
        ([4.0] * 6, [104, 4, 2, 2, 2, 2], BreakEven(iterations=52, measured=False, low=52, high=52), "pays"),
        ([1.0] * 6, [5, 2, 2, 2, 2, 2], BreakEven(iterations=None), "hurts"),
        ([2.0] * 4, [1.0] * 4, BreakEven(iterations=1, measured=True, low=1, high=1), "pays"),
    ],
)
def test_break_even(eager, compiled, even, verdict) -> None:
    found = result(eager, compiled)
    assert (found.break_even, found.verdict) == (even, verdict)


@pytest.mark.parametrize(
    ("compiled", "verdict"), [(0.95, "pays"), (0.96, "neutral"), (1.04, "neutral"), (1.06, "hurts")]
)
def test_five_percent_decide(compiled, verdict) -> None:
    assert result([1.0] * 5, [compiled] * 5).verdict == verdict


@pytest.mark.parametrize(
    ("eager", "compiled", "share", "verdict"),
    [
        ([2.0] * 6, [1.0] * 6, 0.04, "pays"),
        # 20 %: eager took at least 1.6 s, compiled at least 0.8 s: gains of 1.6 to 2.5
        ([2.0] * 6, [1.0] * 6, 0.20, "pays"),
        ([1.2] * 6, [1.0] * 6, 0.20, "unsure"),  # 0.96 to 1.5
        ([1.0] * 6, [3.0] * 6, 0.20, "hurts"),
        ([2, 2, 2, 2, 2, 1], [1, 1, 1, 1, 1, 1], 0.20, "unsure"),  # the fastest are as fast
        ([1.0] * 6, [300.0] * 6, 0.55, "unsure"),  # threads that wait for each other
        ([1.71] * 6, [1.0] * 6, 0.55, "unsure"),
    ],
)
def test_a_verdict_that_other_programs_may_have_changed_is_unsure(eager, compiled, share, verdict) -> None:
    first, then = (Trial(samples_s=tuple(samples), others_share=share) for samples in (eager, compiled))
    found = Compiled(target="it", mode="default", warmup=1, eager=first, cold=then)
    assert found.verdict == verdict
    assert ("unsure" in conclusion(found)) == (verdict == "unsure")
    (document,) = json.loads(render_json(report_of([found])))
    assert document["verdict"] == verdict


def test_a_failure_has_no_figures() -> None:
    found = Compiled(target="it", mode="default", warmup=1, eager=Trial(samples_s=(1, 1)), failed="no compiler")
    assert (found.verdict, found.steady_speedup, found.total_speedup) == (None, None, None)
    assert conclusion(found) == "it (default) does not compile: no compiler."
    (document,) = json.loads(render_json(report_of([found])))
    assert document["compiled_s"] is document["compile_s"] is document["correct"] is document["verdict"] is None


def test_the_document_is_a_list_with_the_fixed_names() -> None:
    check = Check(result=Difference(error=1e-7, tolerance=1e-4), state=Difference(error=1e-6), steps=3)
    found = result([4.0] * 6, [10, 1, 1, 1, 1, 1], check=check, op_bytes=100, fused_bytes=40)
    (document,) = json.loads(render_json(report_of([found])))
    names = (
        "target", "mode", "eager_s", "compiled_s", "steady_speedup", "total_speedup", "warmup_eager_s",
        "warmup_compiled_s", "compile_s", "break_even_iterations", "correct", "verdict",
    )  # fmt: skip
    assert [document[name] for name in names] == ["it", "default", 4, 1, 4, 1.6, 8, 11, 9, 3, True, "pays"]
    assert document["schema"] == "rooflight.compile-bench/1"
    assert document["error"] == 1e-6
    report = report_of([found, found])
    assert msgspec.json.decode(render_json(report), type=tuple[CompileDocument, ...]) == report.data


def test_a_wrong_program_gets_no_praise() -> None:
    check = Check(result=Difference(), state=Difference(why="w differs"), steps=3)
    found = result([4.0] * 6, [1.0] * 6, check=check)
    said = (
        "it (default): the compiled program is wrong (the model's state after it: w differs), so its times say nothing."
    )
    assert conclusion(found) == said
    assert any("is wrong" in note for note in report_of([found]).notes)


@pytest.mark.parametrize("form", ["json", "markdown", "html"])
def test_every_renderer_takes_it(form) -> None:
    assert "it" in find(form)(report_of([result([4.0] * 6, [10, 1, 1, 1, 1, 1])]))


def test_stages_do_not_overlap() -> None:
    metrics = {
        "_compile.compile_inner": [10.0],
        "OutputGraph.call_user_compiler": [9.0],
        "compile_fx_inner": [6.0, 2.0],
        "GraphLowering.compile_to_fn": [5.0, 1.5],
        "compile_fx.<locals>.bw_compiler": [2.0],
    }
    # Dynamo 10 - 9; AOT 9 - 6 of the forward graph; Inductor 8 - 6.5; the backward graph's 2 s lie beyond the 10
    found = of_metrics(metrics)
    assert list(found.values()) == [1, 3, 1.5, 6.5]
    assert sum(found.values()) == 12
    assert set(of_metrics({}).values()) == {0}


def test_launches_cache_and_bytes_before_and_after() -> None:
    found = replace(
        result([4.0] * 6, [1.0] * 6, op_kernels=7, op_bytes=100, fused_bytes=40),
        cold=Trial(samples_s=(1.0,) * 6, kernels=2, kernel_bytes=48, peak_bytes=10, cache_misses=3),
        warm=Trial(samples_s=(1.0,) * 6, cache_hits=2, cache_misses=1),
    )
    report = report_of([found])
    (document,) = report.data
    assert (document.op_kernels, document.kernels) == (7, 2)
    assert (document.op_bytes, document.kernel_bytes, document.fused_bytes) == (100, 48, 40)
    (work,) = [table for table in report.tables if table.id == "work"]
    assert work.rows[0][2:9] == (7, 2, "0 of 3", "2 of 3", 100, 48, 40)
    cached = [getattr(document, f"cache_{what}_{start}") for start in ("cold", "warm") for what in ("hits", "misses")]
    assert cached == [0, 3, 2, 1]


def test_paths_are_short_where_that_names_one_target() -> None:
    names = {"gpt2": "gpt2", "a/train.py:f": "train.py:f", "b/train.py:g": "train.py:g", "/x/model/": "model"}
    assert short_names(list(names)) == names
    assert short_names(["a/config.json", "b/config.json"]) == {"a/config.json": "a", "b/config.json": "b"}
    same = ["a/model.json", "b/model.json"]
    assert short_names(same) == dict(zip(same, same, strict=True))


def test_what_ran_is_told() -> None:
    plain = result([4.0] * 6, [10, 1, 1, 1, 1, 1])
    step = "gpt2: forward pass, batch 1"
    eager = msgspec.structs.replace(plain.eager, step=step, notes=("No class named.",))
    told = replace(plain, target="a/x.json", eager=eager)
    report = report_of([told, replace(told, mode="max-autotune"), plain])
    assert report.facts == (("step", step),)
    assert report.notes.count("No class named.") == 1
    assert report.title == "torch.compile: x, it"
    assert [(each.target, each.step) for each in report.data] == [("a/x.json", step)] * 2 + [("it", "it")]
    columns = report.tables[0].names
    assert columns[:3] == ("target", "mode", "verdict")
    assert report.tables[0].rows[0][:3] == ("x", "default", "pays")


def test_the_summary_says_what_compiling_is_best_for() -> None:
    pays = result([4.0] * 6, [10, 1, 1, 1, 1, 1])
    wrong = replace(pays, check=Check(result=Difference(why="it differs")))
    busy = replace(pays, cold=Trial(samples_s=pays.cold.samples_s, others_share=0.8))
    results = [pays, result([1.0] * 6, [5, 2, 2, 2, 2, 2]), wrong, busy]
    (summary,) = [table for table in report_of(results).tables if table.id == "summary"]
    assert summary.rows[0][2:] == ("1.38 x eager", "4 x", "1.6 x", "3", "over 3 iterations")
    assert [row[-1] for row in summary.rows[1:]] == [
        "nothing",
        "nothing: its result is wrong",
        "not known: the machine was busy",
    ]
