"""The search takes the fastest sample of the fastest trial, and says why where it has none."""

import pytest
from fake_clock import FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.hardware.machine.probes import Figure, Probe, Trial, search
from rooflight.hardware.machine.timing import Timing


def trial(clock: FakeClock, pattern: str, work: float, call_s: float, log: list[str] | None = None) -> Trial:
    def run():
        clock.advance(call_s)
        if log is not None:
            log.append(pattern)

    return Trial(pattern=pattern, work=work, prepare=lambda: run)


def failing(message: str) -> Trial:
    def prepare():
        raise RuntimeError(message)

    return Trial(pattern="fails", work=1, prepare=prepare)


def probe(*trials: Trial, name: str = "matrix") -> Probe:
    return Probe(name=name, unit="FLOP", trials=trials)


def test_the_fastest_trial_is_the_figure():
    clock = FakeClock()
    slow, fast = trial(clock, "slow", 100, 0.010), trial(clock, "fast", 300, 0.010)
    figure = search([probe(slow, fast)], clock=clock, budget_s=1.0)["matrix"]
    assert figure.pattern == "fast"
    # 300 FLOP / 0.01 s
    assert figure.rate == 30_000
    assert figure.verdict() == "30.0 kFLOP/s by fast"
    assert set(figure.timing.samples_s) == {0.01}
    assert figure.samples().startswith("300 FLOP per call; s per call: 0.01 0.01")


def test_a_disturbed_sweep_does_not_spoil_the_roof():
    clock = FakeClock()
    other = trial(clock, "other", 1, 0.001)

    def run():
        clock.advance(0.010 if clock.time_ns < 500_000_000 else 0.001)

    disturbed = Trial(pattern="disturbed at first", work=10, prepare=lambda: run)
    figures = search([probe(disturbed), probe(other, name="other")], clock=clock, budget_s=2.0)
    assert figures["matrix"].rate == 10_000


def test_a_first_call_that_loads_its_code_costs_the_figure_no_samples():
    """As on an H200: the budget went into loading kernels, and each product had one sample, held up by the host."""
    clock, calls = FakeClock(), []

    def prepare():
        def run():
            calls.append(None)
            clock.advance({1: 2.0, 2: 1e-3}.get(len(calls), 1e-4))

        return run

    figure = search([probe(Trial(pattern="loads", work=1, prepare=prepare))], clock=clock, budget_s=0.1)["matrix"]
    assert figure.rate == pytest.approx(10_000)
    assert len(figure.timing.samples_s) >= 100


def test_a_failing_trial_leaves_the_others_alone():
    clock = FakeClock()
    figures = search([probe(failing("no int8"), trial(clock, "works", 1, 0.001))], clock=clock, budget_s=0.1)
    assert figures["matrix"].pattern == "works"


def test_a_probe_without_a_working_trial_says_why_and_is_not_zero():
    figure = search([probe(failing("no int8 in /opt/torch/lib"))], clock=FakeClock(), budget_s=0.1)["matrix"]
    assert figure.rate is None
    assert figure.verdict() == "not measured: RuntimeError: no int8 in (path)"


def test_a_probe_without_trials_is_not_measured():
    assert search([probe()], clock=FakeClock(), budget_s=0.1)["matrix"].verdict() == "not measured: no trial"


def test_trials_expected_to_last_are_skipped():
    clock, log = FakeClock(), []
    short, long = trial(clock, "short", 1, 0.001, log), trial(clock, "long", 1_000, 1.0, log)
    search([probe(short, long)], clock=clock, budget_s=10.0, longest_call_s=0.2)
    assert set(log) == {"short"}


def test_the_only_trial_runs_however_long_it_takes():
    clock = FakeClock()
    assert search([probe(trial(clock, "long", 5, 10.0))], clock=clock, budget_s=0.1)["matrix"].rate == 0.5


def test_an_interrupt_passes_through():
    def run():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search([probe(Trial(pattern="stopped", work=1, prepare=lambda: run))], clock=FakeClock(), budget_s=1.0)


def test_progress_rises_to_one():
    clock, seen = FakeClock(), []
    probes = [probe(trial(clock, "a", 1, 0.001), name=name) for name in ("first", "second")]
    search(probes, clock=clock, budget_s=0.1, progress=lambda name, fraction: seen.append((name, fraction)))
    fractions = [fraction for _, fraction in seen]
    assert fractions == sorted(fractions)
    assert seen[0] == ("first", 0.0)
    assert seen[-1] == ("done", 1.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 50)), min_size=1, max_size=6))
def test_no_trial_beats_the_figure(trials):
    """The law: a roof is never beaten by what was tried."""
    clock = FakeClock()
    made = [trial(clock, str(index), work, ms / 1000) for index, (work, ms) in enumerate(trials)]
    figure = search([probe(*made)], clock=clock, budget_s=100.0)["matrix"]
    # the default limit of 0.2 s a call skips none of these before it has run once
    ran = [work / (ms / 1000) for work, ms in trials]
    assert figure.rate is not None
    assert figure.rate >= ran[0] * (1 - 1e-9)
    assert figure.rate <= max(ran) * (1 + 1e-9)


def test_a_figure_uses_its_fastest_sample():
    figure = Figure(name="x", unit="B", pattern="p", work=6.0, timing=Timing(samples_s=(3.0, 2.0, 4.0)))
    assert figure.rate == 3.0
