"""What helps against lines of the program's own, by what they call; how often evaluations and checkpoints come."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from calibrated import calibration_of, roofs_of

import rooflight as rl
from rooflight.diagnosis.diagnose import diagnose
from rooflight.diagnosis.remedies.own_lines import HOST, remedy_of
from rooflight.hardware.devices.calibrations import device_of
from rooflight.records.account import Cause, Place, hottest
from rooflight.records.timeline import Between, HostLine, Run, RunStep, StepKind, Within


def line(number: int, calls: str = "", within: Within = Within.ITSELF, seconds: float = 1.0, function: str = "f"):
    return HostLine(
        where=Place(file="t.py", line=number, function=function, calls=calls),
        within=within,
        seconds=seconds,
        asleep_s=0.0,
    )


@pytest.mark.parametrize(
    ("calls", "within", "word"),
    [
        ("gc.collect", Within.ITSELF, "gc.collect"),
        ("copy.deepcopy", Within.COPYING, "copy once"),
        ("log.debug", Within.ITSELF, "if it is read"),
        ("f-string", Within.ITSELF, "if it is read"),
        ("self.names", Within.TEXT, "if it is read"),
        ("np.savetxt", Within.FILES, "binary"),
        ("file.write", Within.ITSELF, "binary"),
        ("torch.cat", Within.OPS, "preallocate"),
        ("torch.tensor", Within.ITSELF, "np.stack"),
        ("default_collate", Within.ITSELF, "workers"),
        ("rnn.pad_sequence", Within.OPS, "workers"),
        ("tokenize", Within.ITSELF, HOST.short),
        ("concatenated_names", Within.ITSELF, HOST.short),
        ("blueprint", Within.ITSELF, HOST.short),
    ],
)
def test_what_a_line_calls_decides_what_helps(calls: str, within: Within, word: str) -> None:
    assert word in remedy_of(line(1, calls, within)).short


def test_a_function_that_makes_batches_belongs_in_workers_unless_its_line_has_a_remedy_of_its_own() -> None:
    assert "workers" in remedy_of(line(1, "torch.stack", function="collate_words")).short
    assert "np.stack" in remedy_of(line(1, "torch.tensor", function="collate_words")).short


def test_the_hottest_line_is_of_the_function_in_which_most_of_the_time_is() -> None:
    seconds = {line(1, function="main").where: 3.0, line(2, function="metric").where: 2.0,
               line(3, function="metric").where: 2.5}  # fmt: skip
    assert [place.line for place in hottest(seconds, 2)] == [3, 1]


def found_with(*between: Between):
    """What is found of a script whose step takes 1 ms, and what lies before it."""
    x = torch.randn(64, 64)
    session = rl.measure(lambda: x @ x, max_runs=3, profiled=1)
    step = RunStep(kind=StepKind.OPTIMIZER, name="SGD.step", where=Place(file="t.py", line=9), count=50, begins="",
                   recorded=3)  # fmt: skip
    session = replace(session, run=Run(script="t.py", exit_code=0, step=step, between=between))
    return rl.analyze(session, device_of(calibration_of(roofs_of(1e12, 1e11), "test CPU")))


def test_evaluations_say_how_often_they_come_and_how_long_each_takes() -> None:
    part = Between(name="evaluation", seconds=0.2, share=0.99, seen=(5, 50), lines=(line(7, "metric"),))
    finding = next(each for each in diagnose(found_with(part)).findings if each.id == "evaluation")
    assert "5 times in 50 steps, 2.00 s each" in finding.evidence  # 0.2 s * 50 / 5
    assert finding.predicted_gain_s == pytest.approx(0.1, rel=0.01)
    assert finding.where[0].line == 7


def test_ops_that_were_not_recorded_are_no_python() -> None:
    own = Between(name="other", seconds=0.3, share=0.99, seen=(50, 50), lines=(line(7, "x.sum", Within.OPS),))
    analysis = found_with(own)
    assert analysis.account.seconds(Cause.NO_OP) == pytest.approx(0.3, rel=0.01)
    assert not [each for each in diagnose(analysis).findings if each.id == "host-code"]
    (spot,) = [each for each in diagnose(analysis).hot_spots if Cause.NO_OP in each.causes]
    assert spot.where[0].line == 7


def test_a_memory_that_grows_by_concatenation_is_one() -> None:
    own = Between(name="calls without gradients", seconds=0.3, share=0.99, seen=(50, 50),
                  lines=(line(7, "torch.cat", Within.OPS),))  # fmt: skip
    finding = next(each for each in diagnose(found_with(own)).findings if each.id == "host-code")
    assert "preallocate" in finding.short
