"""Trials with a clock that only the programs move: every second is exact."""

import pytest
import torch
from fake_clock import FakeClock

from rooflight.hardware.machine.cpu_load import Bystander, CpuTime
from rooflight.studies.scoring.trials import BOX_S, FEWEST_TRIALS, MOST_TRIALS, WrongResultError, timed


class Track:
    """Programs that take seconds, and what they were called with."""

    def __init__(self, **seconds: float) -> None:
        self.clock, self.calls = FakeClock(), []
        self.programs = {name: self._program(name, takes) for name, takes in seconds.items()}

    def _program(self, name, takes):
        def run(inputs):
            self.calls.append((name, inputs))
            self.clock.advance(takes)
            return inputs[0] * 2

        return run

    def timed(self, trials=None, check=lambda results: "", **options):
        return timed(
            self.programs, lambda n: (torch.tensor([float(n)]),), check, clock=self.clock, trials=trials, **options
        )


def test_each_trial_runs_all_programs_in_turns():
    track = Track(eager=3.0, compiled=2.0, solution=1.0)
    found = track.timed(trials=4)
    assert {name: timing.samples_s for name, timing in found.timings.items()} == {
        "eager": (3.0,) * 4,
        "compiled": (2.0,) * 4,
        "solution": (1.0,) * 4,
    }
    assert found.number == 4
    after_warm_up = [name for name, _ in track.calls[6:]]
    assert after_warm_up == ["eager", "compiled", "solution", "compiled", "solution", "eager",
                             "solution", "eager", "compiled", "eager", "compiled", "solution"]  # fmt: skip


def test_each_trial_has_new_inputs_and_each_program_its_own_copy():
    track = Track(eager=1.0, solution=1.0)
    track.timed(trials=3)
    values = [float(inputs[0]) for _, inputs in track.calls]
    assert values == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert len({inputs[0].data_ptr() for _, inputs in track.calls[4:6]}) == 2


def test_without_a_number_as_many_trials_as_fit_into_the_box():
    assert Track(eager=BOX_S).timed().number == FEWEST_TRIALS
    assert Track(eager=1e-6).timed().number == MOST_TRIALS
    assert Track(eager=3.0).timed().number == 10  # 10 * 3 s = BOX_S


def test_progress_names_what_runs_and_a_wrong_result_of_a_timed_call_is_told():
    def check(results):
        return "the second is wrong" if float(results["solution"]) == 4.0 else ""

    said = []
    Track(eager=1.0).timed(trials=2, progress=said.append)
    assert said == ["warming up: eager", "trial 1 of 2", "trial 2 of 2"]
    with pytest.raises(WrongResultError, match=r"the second is wrong \(in timed trial 2\)"):
        Track(eager=1.0, solution=1.0).timed(trials=5, check=check)
    with pytest.raises(ValueError, match="--trials 0: at least 1 trial"):
        Track(eager=1.0).timed(trials=0)


@pytest.mark.parametrize(("taken", "disturbed"), [(0.04, False), (0.06, True)])
def test_trials_beside_other_programs_are_disturbed(taken, disturbed):
    times = iter(
        [CpuTime(wall_s=0, own_s=0, all_s=0, cores=1), CpuTime(wall_s=1, own_s=0.5, all_s=0.5 + taken, cores=1)]
    )
    found = Track(eager=1.0).timed(trials=1, bystander=Bystander(lambda: next(times)))
    assert (found.others_share, found.disturbed) == (pytest.approx(taken), disturbed)
