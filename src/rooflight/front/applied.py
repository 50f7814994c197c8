"""Remedies tried on a step, which is made again with each: both are timed in turn, and their results compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any, Final

from rooflight.front.device import Progress
from rooflight.roofline.findings import Applied, Finding

_ROUNDS: Final = 7
_LONG_S: Final = 20.0  # rounds of one remedy take no longer
_CALLS_S: Final = 0.02


def applied(
    target: str, inputs: str | None, findings: Sequence[Finding], most: int, progress: Progress
) -> tuple[Applied, ...]:
    """The first ``most`` findings whose remedy can be tried without a change of the program, tried on a copy of a
    user's step. What breaks the program is told.
    """
    from rooflight.sources.workloads.remedied import WHILE_MADE

    found = []
    for finding in [each for each in findings if each.id in WHILE_MADE][:most]:
        progress(f"trying {finding.id}")
        try:
            gain_s, results = _tried(target, inputs, finding.id)
        except Exception as error:  # whatever the program raises with a remedy that it was not written for
            gain_s, results = None, f"not tried: {type(error).__name__}: {error}"[:200]
        found.append(
            Applied(id=finding.id, predicted_gain_s=finding.predicted_gain_s, measured_gain_s=gain_s, results=results)
        )
    return tuple(found)


def _tried(target: str, inputs: str | None, name: str) -> tuple[float, str]:
    """By how many seconds a step is shorter with a remedy, and whether its results are the same."""
    import torch

    from rooflight.sources.workloads.outputs import compare, copied
    from rooflight.sources.workloads.remedied import WHILE_MADE, changed, modules_alive
    from rooflight.sources.workloads.targets import open_target

    def made(*, remedied: bool) -> Callable[[], Any]:
        torch.manual_seed(0)
        others = modules_alive()
        run = open_target(target, inputs=inputs).run
        return changed(name, run, others) if remedied else run

    plain = made(remedied=False)
    torch.manual_seed(0)
    expected = copied(plain())
    with WHILE_MADE[name]():
        other = made(remedied=True)
        torch.manual_seed(0)
        difference = compare(expected, other())
    times: tuple[list[float], list[float]] = ([], [])
    begin = perf_counter()
    while len(times[1]) < _ROUNDS and (len(times[1]) < 3 or perf_counter() - begin < _LONG_S):
        times[0].append(_seconds(plain))
        with WHILE_MADE[name]():
            times[1].append(_seconds(other))
    gain_s = median(times[0][1:]) - median(times[1][1:])
    return gain_s, "the same" if difference.agrees else difference.message


def _seconds(step: Callable[[], Any]) -> float:
    """Of a call; of short steps the mean of several."""
    begin, calls = perf_counter(), 0
    while not calls or perf_counter() - begin < _CALLS_S:
        step()
        calls += 1
    return (perf_counter() - begin) / calls
