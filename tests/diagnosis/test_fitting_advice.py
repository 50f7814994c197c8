"""Advice that fits its cause: compiling, recompiles, gradients that no optimizer uses, and the headline."""

from __future__ import annotations

import msgspec
import pytest
import torch
from test_diagnose import ids, recorded, timed
from torch import nn

from rooflight.diagnosis.diagnose import diagnose
from rooflight.records.account import Cause, Place
from rooflight.records.record import Direction
from rooflight.records.timeline import Compilation, HostTime
from rooflight.roofline.tables.findings import answer


def test_a_loss_that_reaches_what_another_trains_is_detached_and_what_is_frozen_is_not_trained() -> None:
    def short_of(*, critic_alone: bool, frozen: bool) -> str:
        maker, critic = (nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(2))
        trained = (torch.optim.SGD(each.parameters(), lr=0.1) for each in ((critic,) if frozen else (critic, maker)))
        optimizers, noise = tuple(trained), torch.randn(8, 16)

        def step() -> None:
            optimizers[0].zero_grad()
            critic(maker(noise)).square().mean().backward()
            optimizers[0].step()
            if not critic_alone:
                optimizers[1].zero_grad()
                critic(maker(noise)).mean().backward()
                optimizers[1].step()

        found = diagnose(timed(recorded(step)))
        return next(each.short for each in found.findings if each.id == "unused-gradients")

    assert short_of(critic_alone=False, frozen=False) == "detach() what this loss does not train"
    assert short_of(critic_alone=True, frozen=True) == "requires_grad_(False), or detach() if trained"


def test_one_op_is_not_many_and_what_compiling_loses_is_what_its_ops_lose() -> None:
    x = torch.randn(512, 512)
    assert "compile" not in ids(diagnose(timed(recorded(lambda: x.exp().detach()), op_s=1.0)))
    assert "compile" not in ids(diagnose(timed(recorded(lambda: x @ x @ x), op_s=1.0)))  # each by a library
    weight = torch.randn(512, 512, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        y = x @ weight
        for _ in range(12):
            y = y.sin() * y
        y.sum().backward()
        optimizer.step()

    analysis = timed(recorded(step))
    (found,) = [each for each in diagnose(analysis).findings if each.id == "compile"]
    assert found.short == "torch.compile(step)"  # no module has it
    columns = analysis.session.columns
    not_updates = int((columns.direction[analysis.session.counted] != Direction.OPTIMIZER).sum())
    assert 12 * 2 + 1 < int(found.evidence.split(" ops, ")[0]) <= not_updates
    rows = analysis.account.rows
    light_s = sum(row.seconds for row in rows if row.cause is Cause.LIGHT)
    assert found.predicted_gain_s <= found.seconds_lost <= sum(row.seconds for row in rows) - light_s


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        ("self.param_groups[0]['lr'] == 0.001", "lr=torch.tensor(...) in the optimizer"),
        ("self.param_groups[0]['betas'][0] == 0.9", "fused=True in the optimizer, not compiled"),
        ("tensor 'x' size mismatch at index 0. expected 32, actual 48", "dynamic=True, or mark_dynamic"),
        ("n == 7", "a tensor in the place of what changes"),
    ],
)
def test_the_remedy_of_recompiles_fits_the_guard_that_failed(reason, short) -> None:
    seen = (Compilation(where=Place(function="torch's step"), times=8, reason=reason, limited=True),)
    x = torch.randn(64, 64)
    analysis = timed(recorded(lambda: x.sin().cos()), host=HostTime(cpu_s=1.0, compilations=seen))
    (found,) = [each for each in diagnose(analysis).findings if each.id == "recompiles"]
    assert found.short == short


def test_a_headline_promises_no_gain_of_nothing() -> None:
    seen = (Compilation(where=None, times=0, reason="print"),)
    x = torch.randn(64, 64)
    found = diagnose(timed(recorded(lambda: x @ x), host=HostTime(cpu_s=1.0, compilations=seen)))
    (broken,) = [each for each in found.findings if each.id == "graph-breaks"]
    nothing = msgspec.structs.replace(broken, predicted_gain_s=0.0, seconds_lost=1.0)
    said = answer(msgspec.structs.replace(found, findings=(nothing,), hot_spots=()))
    assert (
        said
        == "First: graph breaks cut compiled code into pieces. What helps: take the line out of the compiled function."
    )
    gains = msgspec.structs.replace(broken, title="another", predicted_gain_s=0.1, seconds_lost=1.0)
    both = msgspec.structs.replace(found, findings=(nothing, gains), hot_spots=())
    assert answer(both).startswith("First: another. ")
