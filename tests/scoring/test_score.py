"""Solutions scored on this CPU: right ones get a share of the way, wrong ones a reason."""

import textwrap
from dataclasses import replace

import pytest
import torch
from fake_clock import FakeClock
from scoring_problems import FORWARD, REFERENCE, score_by_hand
from torch import nn
from tracked import CPU, ROOFS

import rooflight as rl
from rooflight.hardware.devices.spec import MemoryLevel
from rooflight.hardware.devices.what_if import WhatIf
from rooflight.scoring import score
from rooflight.sources.workloads.errors import RunFailed, TargetError
from rooflight.sources.workloads.outputs import Difference
from rooflight.studies.scoring.run import computes_in_tf32
from rooflight.studies.scoring.tables import report_of

KEEPS = "gives the same result for other inputs: it keeps results between calls, or ignores its inputs"


def scored(files, forward=FORWARD, *, reference=None, solution=None, **options):
    options = {"compiled": False, "trials": 2, "clock": FakeClock(call_s=1e-3)} | options
    return score(reference or files.reference(), solution or files.solution(forward), **options)


def test_a_right_solution_is_timed_beside_eager(files):
    found = scored(files, trials=3)
    assert found.checked.agrees
    assert (found.checked.draws, found.checked.tensors_matched, found.checked.tensors_unmatched) == (5, 2, ())
    assert list(found.timings) == ["eager", "solution"]
    assert found.trials.number == 3
    assert found.speedup == pytest.approx(1.0)  # the clock gives every call a millisecond
    assert found.share("solution") == 0.0
    assert found.analysis.totals.matrix_flops == 2 * 16 * 12 * 8
    found = scored(files, solution=files.reference())  # a class called Model is a solution too
    assert (found.solution_class, found.checked.agrees) == ("Model", True)


def test_the_reference_is_compiled_too(files):
    found = scored(files, compiled=True, clock=None, trials=2)
    assert (list(found.timings), found.not_compiled) == (["eager", "compiled", "solution"], "")
    assert found.checked.compiled.agrees
    assert report_of(found).data.programs[1].name == "compiled"


def test_a_reference_that_does_not_compile_is_scored_without(files, monkeypatch):
    def refuse(model):
        def run(*inputs):
            raise NotImplementedError("no such backend")

        return run

    monkeypatch.setattr(torch, "compile", refuse)
    found = scored(files, compiled=True)
    assert list(found.timings) == ["eager", "solution"]
    assert found.not_compiled.startswith("torch.compile failed: NotImplementedError: no such backend")


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        ("return self.layer(x)", "the result differs: "),
        ("return self.layer(x).relu().double()", "result has dtype float64, the reference's float32"),
        ("return self.layer(x).relu()[:4]", "result has shape [4, 8], the reference's [16, 8]"),
        ("return self.layer(x).relu() / 0", "result has NaN in "),
        ("return (self.layer(x).relu(), x)", "returns 2 values ([0], [1]), the reference returns one Tensor"),
        ("return None", "returns nothing, the reference returns one Tensor"),
        ("y = self.layer(x).relu()\nx.zero_()\nreturn y", "changes its input 0 in place, as the reference does not"),
        ("raise KeyError('no kernel')", "raised KeyError: 'no kernel' (solution.py:"),
        ("import sys\nsys.exit(0)", "raised SystemExit: 0 (solution.py:"),
        ("return self.layer(x[:, :3])", "raised RuntimeError: "),
        ("return self.__dict__.setdefault('kept', self.layer(x).relu())", KEEPS),
        ("return self.__dict__.setdefault('cache', {}).setdefault(x.shape, self.layer(x).relu())", KEEPS),
        ("return self.layer(torch.zeros(16, 12)).relu()", "the result differs: "),
    ],
)
def test_a_wrong_solution_is_told_why_and_gets_no_share(files, forward, why):
    found = scored(files, forward)
    assert found.checked.why.startswith(why)
    assert "\n" not in found.checked.why
    assert (found.trials, found.share("solution"), found.speedup) == (None, None, None)
    report = report_of(found)
    assert report.conclusion.startswith("solution.py is wrong: ")
    assert (report.data.share, report.data.programs, report.data.checked.agrees) == (None, (), False)


def test_results_that_are_kept_only_while_timed_are_caught(files):
    forward = """\
self.calls = getattr(self, 'calls', 0) + 1
if self.calls == 8: self.kept = self.layer(x).relu()
return self.layer(x).relu() if self.calls <= 8 else self.kept"""
    found = scored(files, forward, trials=5)  # five checked, two to warm up, the first timed one is right
    assert found.checked.why.endswith("(in timed trial 2)")
    assert found.trials is None


def test_a_solution_that_returns_its_input(files):
    same = textwrap.dedent(REFERENCE).replace("nn.Linear(width, 8)", "nn.Linear(width, width)")
    solution = files.solution("return x", old="width, 8", new="width, width")
    assert scored(files, reference=files.reference(code=same), solution=solution).checked.why == "returns its input 0"


def test_weights_are_the_references_whatever_the_solution_draws_first(files):
    more = "super().__init__()\n            self.more = torch.randn(3)"
    found = scored(files, solution=files.solution(old="super().__init__()", new=more))
    assert found.checked.agrees
    assert (found.checked.tensors_matched, found.checked.tensors_unmatched) == (2, ("more",))
    assert "1 tensor of the solution has no counterpart" in report_of(found).notes[0]


def test_a_reference_that_changes_its_input_lets_the_solution_do_so(files):
    reference = files.reference("return torch.relu(self.layer(x))", "return torch.relu(self.layer(x.mul_(2)))")
    found = score(reference, files.solution("return self.layer(x.mul_(2)).relu()"), compiled=False, trials=1)
    assert found.checked.agrees


def test_both_draw_the_same_random_numbers(files):
    drops = "return torch.dropout(torch.relu(self.layer(x)), 0.5, True)"
    reference = files.reference("return torch.relu(self.layer(x))", drops)
    assert score(reference, files.solution(drops), compiled=False, trials=2).trials.number == 2
    wrong = score(reference, files.solution(f"torch.rand(3)\n{drops}"), compiled=False)
    assert wrong.checked.why.endswith("the reference draws random numbers, and the solution did not draw the same")


def test_what_a_check_could_not_notice_is_noted(files):
    reference = files.reference("torch.randn(16, 12)", "torch.ones(16, 12)")
    found = scored(files, reference=reference)
    assert any("the same inputs for every draw" in note for note in report_of(found).notes)
    reference = files.reference("torch.relu(self.layer(x))", "torch.relu(self.layer(x)) * 0")
    found = scored(files, f"{FORWARD} * 0", reference=reference)
    assert any("computes nothing would not be noticed" in note for note in report_of(found).notes)


def test_results_in_the_same_memory_are_noted(files):
    forward = "self.out = getattr(self, 'out', torch.empty(16, 8))\nreturn self.out.copy_(self.layer(x).relu())"
    found = scored(files, forward)
    assert found.checked.agrees
    assert any("memory of its earlier results" in note for note in report_of(found).notes)


def test_fewer_bits_are_right_at_a_tolerance_that_allows_them_and_are_named(files):
    forward = """\
x, weight, bias = x.bfloat16(), self.layer.weight.bfloat16(), self.layer.bias.bfloat16()
return nn.functional.linear(x, weight, bias).relu().float()"""
    assert not scored(files, forward).checked.agrees
    found = scored(files, forward, tolerance=0.05)
    assert found.checked.agrees
    assert found.checked.difference.precision == "bfloat16"
    assert any("as rough as one computed in bfloat16" in note for note in report_of(found).notes)


def test_another_device_has_bounds_and_no_times(files):
    found = scored(files, device="B200-SXM")
    assert found.checked.agrees
    assert (found.trials, found.not_timed) == (None, "B200-SXM is not in this machine")
    assert found.analysis.device.name == "B200-SXM"
    assert "No times: B200-SXM is not in this machine" in report_of(found).conclusion


def test_programs_that_do_not_fit_are_not_run(files, monkeypatch):
    monkeypatch.setattr("rooflight.studies.scoring.run.free_memory_bytes", lambda kind: 1000)
    found = scored(files, "raise SystemError")
    assert (found.checked, found.trials) == (None, None)
    assert "side by side need at least" in report_of(found).conclusion


def test_values_that_a_reference_reads_are_no_hindrance(files):
    reads = "return torch.relu(self.layer(x)) * max(1, x.nonzero().shape[0] // 10**6)"
    found = scored(files, reference=files.reference("return torch.relu(self.layer(x))", reads))
    assert any("Recorded on this machine's CPU" in note for note in report_of(found).notes)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("class ModelNew", "class Kernel", "solution.py defines no ModelNew: a solution has one; is class Kernel"),
        ("import torch\n", "import torch\n    import missing_1\n", "solution.py needs the package missing_1, which"),
        ("import torch\n", "import torch\n    1 / 0\n", "importing solution.py raised ZeroDivisionError"),
        ("super().__init__()", "raise OSError('no nvcc')", "solution.py: ModelNew raised OSError: no nvcc (sol"),
        ("width):", "width, more):", "solution.py: ModelNew raised TypeError"),
        ("nn.Module", "object", "solution.py: ModelNew is no torch.nn.Module"),
        ("def forward(", "def forward((", "solution.py:9: syntax error"),
    ],
)  # fmt: skip
def test_a_solution_that_cannot_be_used_is_refused_in_one_line(files, old, new, told):
    with pytest.raises(TargetError) as caught:
        score(files.reference(), files.solution(old=old, new=new), compiled=False)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="allocating on CUDA works here")
def test_a_solution_that_needs_cuda_says_so(files):
    with pytest.raises(TargetError, match="ModelNew allocates on cuda explicitly, this run is on cpu"):
        score(files.reference(), files.solution(old="nn.Linear(width, 8)", new="nn.Linear(width, 8).cuda()"))
    why = scored(files, "return self.layer(x.cuda()).relu()").checked.why
    assert why == (
        "solution.py allocates on cuda explicitly, this run is on cpu: "
        'leave out device="cuda" and .cuda() (solution.py:10 in forward)'
    )


def test_a_file_with_null_bytes_is_refused_in_one_line(files):
    binary = files.folder / "binary.py"
    binary.write_bytes(b"import torch\0\n")
    for pair in ((files.reference(), binary), (binary, files.solution())):
        with pytest.raises(TargetError, match=r"binary\.py: syntax error: source .* null bytes"):
            score(*pair, compiled=False)


def test_a_reference_that_raises_is_no_fault_of_the_solution(files):
    with pytest.raises(RunFailed, match=r"the step failed: .* \(problem.py:10 in forward\)"):
        score(files.reference("self.layer(x)", "self.layer(x.t())"), files.solution(), compiled=False)


@pytest.mark.parametrize(
    ("program", "tf32"),
    [(nn.Conv2d(3, 4, 3), True), (nn.Linear(8, 8), False), (nn.ReLU(), False), (nn.Linear(8, 8).bfloat16(), False)],
)
def test_only_what_runs_in_tf32_has_its_tolerance(program, tf32):
    dtype = next((weight.dtype for weight in program.parameters()), torch.float32)
    with rl.record(program) as recording:
        program(torch.randn(1, 3, 8, 8, dtype=dtype))
    assert computes_in_tf32(recording.session, rl.devices.get("A100-SXM4-80GB")) is tf32
    assert not computes_in_tf32(recording.session, rl.devices.get("V100-SXM2-32GB"))  # has none
    assert not computes_in_tf32(recording.session, None)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"trials": 0}, "--trials 0: at least 1 trial"),
        ({"tolerance": 1.0}, "--tolerance 1: an error, of 1"),
        ({"tolerance": float("nan")}, "--tolerance nan: an error, of 1"),
        ({"device": "H300"}, "H300"),
    ],
)
def test_impossible_options(files, options, told):
    with pytest.raises(ValueError, match=told):
        scored(files, **options)


def test_the_share_of_the_way_by_hand():
    assert ROOFS.memory[0].bytes_per_s == 1e11
    found = score_by_hand(24e-3, 12e-3, 20e-3)
    assert found.program_bound_s == pytest.approx(8e-3)
    assert found.share("solution") == pytest.approx(0.75)  # (24 - 12) / (24 - 8)
    assert found.share("compiled") == pytest.approx(0.25)
    assert found.speedup == pytest.approx(2.0)
    assert report_of(found).conclusion == (
        "The solution goes 75.0% of the way from eager to light, torch.compile 25.0%: 12.0 ms beside eager's 24.0 ms, "
        "and the 8.00 ms that any program for this work needs."
    )


def test_a_solution_slower_than_eager_has_a_negative_share_and_eager_at_its_bound_leaves_no_way():
    found = score_by_hand(24e-3, 40e-3)
    assert found.share("solution") == pytest.approx(-1.0)
    assert report_of(found).conclusion.startswith("The solution is slower than eager: 40.0 ms beside eager's 24.0 ms")
    found = score_by_hand(8.2e-3, 8.1e-3)
    assert (found.eager_at_bound, found.share("solution")) == (True, None)
    assert "nothing is left to gain" in report_of(found).conclusion


ROUGH = Difference(error=5e-3, rms=2e-3, tolerance=1e-2)


@pytest.mark.parametrize(
    ("difference", "cause"),
    [
        (None, "an algorithm with fewer operations"),
        (
            Difference(error=5e-3, rms=2e-3, tolerance=1e-2),
            "arithmetic of fewer bits: its result is as rough as bfloat",
        ),
    ],
)
def test_faster_than_light_is_a_contradiction_with_its_causes(difference, cause):
    found = score_by_hand(24e-3, 4e-3, difference=difference)
    assert found.faster_than_light == ("solution",)
    assert found.share("solution") == pytest.approx(1.25)  # never clipped
    report = report_of(found)
    assert report.conclusion.startswith("Contradiction: solution took 4.00 ms, less than the 8.00 ms")
    (note,) = (note for note in report.notes if note.startswith("Contradiction"))
    assert cause in note
    assert "Every timed result was compared with eager's" in note


def test_eager_faster_than_light_lets_the_bound_be_doubted_and_other_programs_the_times():
    report = report_of(score_by_hand(4e-3, 3e-3))
    (note,) = (note for note in report.notes if note.startswith("Contradiction"))
    assert "Likely causes: roofs that are too low" in note
    assert "fewer operations" not in note
    report = report_of(score_by_hand(24e-3, 12e-3, others=0.5))
    assert any("Other programs took 50.0% of the CPU" in note for note in report.notes)
    assert report.conclusion.endswith("score again on a quiet machine.")
    assert report.data.disturbed


def test_what_if_roofs_bound_a_solution_too(files):
    plain, fewer = (
        scored(files, device="H100-SXM5-80GB", what_if=WhatIf(precision=name)).analysis for name in (None, "bf16")
    )
    assert fewer.totals.op_bound_s <= plain.totals.op_bound_s
    assert any(name == "what if" for name, _ in report_of(scored(files, what_if=WhatIf(precision="bf16"))).facts)


def test_times_from_cold_caches_stand_beside_a_bound_that_reads_all_from_main_memory():
    """A cache of 500 MB would hold the 400 MB that are read: 4 ms at 1e11 bytes/s all the same, 0.1 ms from it."""
    found = score_by_hand(24e-3, 12e-3)
    cache = MemoryLevel(name="L3", capacity_bytes=500_000_000, bytes_per_s=1e13)
    device = replace(CPU, calibrated=replace(ROOFS, memory=(cache, *ROOFS.memory)))
    found = replace(found, analysis=rl.analyze(found.analysis.session, device))
    assert found.analysis.program.program_bound_s <= 1e-4
    assert found.bounds.program_bound_s == found.bounds.fused_bound_s == found.bounds.op_bound_s == pytest.approx(4e-3)
    assert found.share("solution") == pytest.approx(12 / 20)
    data = report_of(found).data
    assert data.bounds.program_bound_s == pytest.approx(4e-3)
    assert data.bounds.warm_program_bound_s <= 1e-4
