"""The diagnosis: each rule on a program that has its cause, and on one that has not, with times that are given."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from tracked import CPU

import rooflight as rl
from rooflight.devices import get
from rooflight.diagnosis.diagnose import _ranked, diagnose
from rooflight.diagnosis.draft import NO_CALLS, Draft, Facts, Remedy
from rooflight.diagnosis.evidence import Evidence
from rooflight.diagnosis.values import Values, levels
from rooflight.records.account import Place
from rooflight.records.measurement import Measurement
from rooflight.records.session import Session
from rooflight.records.timeline import Between, Compilation, HostLine, HostTime, Run, Within
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.findings import Diagnosis, Regime
from rooflight.roofline.tables.report import report_of
from rooflight.roofline.tables.run import in_brief

OP_S, GAP_S = 1e-3, 1e-6
ROWS, MASK = torch.tensor([0, 1, 1, 3]), torch.eye(4, 8, dtype=torch.bool)


def recorded(step: Callable[[], Any]) -> Session:
    """A step that has run before, followed in memory."""
    step()
    with rl.record(memory=True) as recording:
        step()
    return recording.session


def timed(
    session: Session, *, waits_s: float = 0.0, host: HostTime | None = None, op_s: float = OP_S, device: Any = CPU
) -> Analysis:
    """The session as if each op had taken ``op_s``, with gaps of ``GAP_S``, and the host had then waited."""
    count = len(session)
    starts = np.arange(count) * (op_s + GAP_S)
    wall_s = count * (op_s + GAP_S) + waits_s
    measurement = Measurement(
        wall_samples_s=np.array([wall_s]),
        op_samples_s=np.full((1, count), op_s),
        op_starts_s=starts[None, :],
        clock="given",
        host=host or HostTime(cpu_s=wall_s),
    )
    return rl.analyze(replace(session, environment={}).with_measurement(measurement), device)


def ids(found: Diagnosis) -> list[str]:
    """The findings, in order."""
    return [finding.id for finding in found.findings]


def facts_of(session: Session) -> Facts:
    of = Evidence(timed(session))
    return Facts(of, Values(of))


# -- values


def test_what_reads_parameters_and_numbers_alone_is_constant() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight * 2 + torch.arange(8)  # arange, mul, add: constant
            return F.linear(x, weight).relu()  # mm and relu read x

    layer, x = Scaled(8, 8).requires_grad_(False), torch.randn(4, 8)
    facts = facts_of(recorded(lambda: layer(x)))
    names = [facts.of.op(call).name for call in np.flatnonzero(facts.values.constant)]
    assert sorted(names) == ["aten::add", "aten::arange", "aten::mul"]


def test_a_parameter_that_the_step_updates_is_not_constant() -> None:
    class Growing(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.add_(self.weight * 2)
            return x

    layer, x = Growing(8, 8), torch.randn(4, 8)
    assert not facts_of(recorded(lambda: layer(x))).values.constant.any()


def test_what_buffers_alone_make_is_constant() -> None:
    class Coarse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.ones(8, 8, dtype=torch.int8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.weight.float() / 9)

    model, x = Coarse(), torch.randn(4, 8)
    facts = facts_of(recorded(lambda: model(x)))
    assert [facts.of.op(call).name for call in np.flatnonzero(facts.values.constant)] == ["aten::_to_copy", "aten::div"]


def test_random_numbers_are_not_constant() -> None:
    layer = nn.Linear(8, 8).requires_grad_(False)
    facts = facts_of(recorded(lambda: layer(torch.rand(8, 8))))
    assert not facts.values.constant.any()


def test_the_same_op_on_the_same_values_is_found_through_a_chain() -> None:
    encoder, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).requires_grad_(False), torch.randn(4, 8)
    facts = facts_of(recorded(lambda: (encoder(x), encoder(x))))
    again = [facts.of.op(call).name for call in np.flatnonzero(facts.values.repeated)]
    assert again == ["aten::addmm", "aten::relu", "aten::addmm"]


@pytest.mark.parametrize(
    "step",
    [
        lambda x: (x * 2, x * 3),  # numbers are in no signature
        lambda x: (x.relu(), x.add_(1).relu()),  # written in between
        lambda x: (x[0].relu(), x[1].relu()),  # another place
        lambda x: (F.dropout(x), F.dropout(x)),
        lambda x: [x.mul(torch.arange(start, start + 8)) for start in (0, 1)],
        lambda x: [x.masked_fill(MASK, number) for number in (1, 2)],
        lambda x: (torch.zeros(4, 8).index_add_(0, ROWS, x).cos(), torch.ones(4, 8).index_add_(0, ROWS, x).cos()),
        lambda x: (torch.zeros(8, 8)[:4].copy_(x)._base.cos(), torch.ones(8, 8)[:4].copy_(x)._base.cos()),
        lambda x: (torch.zeros(4, 8).add_(x), torch.zeros(4, 8).add_(x, alpha=2)),
    ],
)
def test_what_differs_is_not_repeated(step: Callable[[torch.Tensor], Any]) -> None:
    x = torch.randn(4, 8)
    assert not facts_of(recorded(lambda: step(x))).values.repeated.any()


class Weighted(nn.Module):
    """Weights rows by how often they occur."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([ROWS, torch.arange(4)])
        counts = torch.zeros(4).index_add_(0, rows, torch.ones(8)).pow(self.power)
        return x * counts.masked_fill_(counts > 9, 0)[:, None]


def test_what_each_layer_computes_again_is_found_in_place_and_past_numbers() -> None:
    layers, x = nn.Sequential(Weighted(-0.5), Weighted(-0.5)), torch.randn(4, 8)
    facts = facts_of(recorded(lambda: layers(x)))
    again = [facts.of.op(call).name for call in np.flatnonzero(facts.values.repeated)]
    assert again == ["aten::cat", "aten::index_add_", "aten::pow", "aten::gt", "aten::masked_fill_"]


def test_a_loop_over_numbers_is_not_repeated() -> None:
    x = torch.randn(4, 8)
    facts = facts_of(recorded(lambda: [x.sigmoid() > level for level in (0.1, 0.2)]))
    assert [facts.of.op(call).name for call in np.flatnonzero(facts.values.repeated)] == ["aten::sigmoid"]


def test_what_nobody_reads_is_unread_with_all_that_led_to_it() -> None:
    x = torch.randn(64, 64)

    def step() -> torch.Tensor:
        for_nobody = (x @ x).relu().cos()
        del for_nobody
        return x.sin().exp()

    facts = facts_of(recorded(step))
    names = [facts.of.op(call).name for call in np.flatnonzero(facts.values.unread)]
    assert names == ["aten::mm", "aten::relu", "aten::cos"]


def test_what_python_may_have_read_is_not_called_unread() -> None:
    x = torch.randn(64, 64)

    def step() -> list[int]:
        return x.argmax(1).tolist()  # type: ignore[no-any-return]

    assert not facts_of(recorded(step)).values.unread.any()


def test_gradients_that_no_optimizer_reads_are_unused() -> None:
    body, head, x = nn.Linear(16, 16), nn.Linear(16, 4), torch.randn(8, 16)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        head(body(x).relu()).sum().backward()
        optimizer.step()

    facts = facts_of(recorded(step))
    names = {facts.of.op(call).name for call in np.flatnonzero(facts.values.unused_gradients)}
    assert "aten::mm" in names  # the gradient of body's weight, and that of its result
    assert "unused-gradients" in ids(diagnose(timed(recorded(step))))


def test_levels_tell_a_chain_from_calls_side_by_side() -> None:
    x = torch.randn(8, 8)

    def chain() -> torch.Tensor:
        y = x
        for _ in range(6):
            y = y.sin()
        return y

    for step, found in ((chain, [0, 1, 2, 3, 4, 5]), (lambda: [x.sin() for _ in range(6)], [0] * 6)):
        assert levels(Evidence(timed(recorded(step)))).tolist() == found


# -- remedies on the host


def line(seconds: float, asleep_s: float, within: Within = Within.ITSELF, number: int = 31) -> HostLine:
    place = Place(file="data.py", line=number, function="Dataset.__getitem__") if number else None
    return HostLine(where=place, within=within, seconds=seconds, asleep_s=asleep_s)


def a_step() -> torch.Tensor:
    x = torch.ones(4)
    return x.sin().cos()


def test_a_sleeping_loader_is_named_with_its_line_and_gains_what_workers_hide() -> None:
    session = recorded(a_step)
    host = HostTime(cpu_s=0.004, lines=(line(0.08, 0.079, Within.LOADER), line(0.004, 0.0, number=3)))
    found = diagnose(timed(session, waits_s=0.08, host=host))
    first = found.findings[0]
    assert (found.regime, first.id) == (Regime.IDLE, "loader")
    assert "data.py:31" in first.evidence
    assert "asleep" in first.evidence
    # four workers leave a quarter of the wait, less what the step itself covers
    assert first.predicted_gain_s == pytest.approx(0.08 - (0.02 - 3 * (OP_S + GAP_S)), rel=0.2)


def test_workers_that_start_anew_are_told_from_a_slow_loader() -> None:
    lines = (line(0.02, 0.0, Within.STARTING), line(0.05, 0.05, Within.PROCESS), line(0.01, 0.0))
    found = diagnose(timed(recorded(a_step), waits_s=0.07, host=HostTime(cpu_s=0.03, lines=lines)))
    assert ids(found)[0] == "workers-anew"
    assert "loader" not in ids(found)


def test_a_sleep_and_a_busy_line_are_told_apart() -> None:
    asleep = HostTime(cpu_s=0.004, lines=(line(0.08, 0.08), line(0.004, 0.0)))
    busy = HostTime(cpu_s=0.084, lines=(line(0.08, 0.0), line(0.004, 0.0)))
    for host, name in ((asleep, "asleep"), (busy, "host-code")):
        found = diagnose(timed(recorded(a_step), waits_s=0.08, host=host))
        assert ids(found)[0] == name
        assert "data.py:31" in found.findings[0].evidence


def test_time_that_others_took_is_not_the_programs_own() -> None:
    # the thread used as much of its CPU as its ops took and did not sleep: it waited for a CPU
    host = HostTime(cpu_s=0.003, lines=(line(0.08, 0.0), line(0.004, 0.0)))
    assert "host-code" not in ids(diagnose(timed(recorded(a_step), waits_s=0.08, host=host)))


def test_the_recompile_limit_is_a_finding_with_torchs_reason() -> None:
    compiled = Compilation(
        where=Place(file="m.py", line=15, function="forward"), times=8, reason="n == 36", limited=True
    )
    found = diagnose(timed(recorded(a_step), host=HostTime(cpu_s=1.0, compilations=(compiled,))))
    first = next(finding for finding in found.findings if finding.id == "recompiles")
    assert "forward, m.py:15, was compiled 8 times, the last time for n == 36" in first.evidence
    # what runs eagerly for it gains what compiling is predicted to bring, which may be nothing
    assert first.predicted_gain_low_s == 0 <= first.predicted_gain_s <= first.predicted_gain_high_s


# -- remedies of what ops do


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((q @ k.transpose(-2, -1)) / 8).softmax(-1) @ v


def test_attention_written_out_is_found_and_the_fused_op_is_not() -> None:
    q, k, v = (torch.randn(2, 4, 32, 16) for _ in range(3))
    assert "sdpa" in ids(diagnose(timed(recorded(lambda: attention(q, k, v)))))
    assert "sdpa" not in ids(diagnose(timed(recorded(lambda: F.scaled_dot_product_attention(q, k, v)))))


def test_copies_of_keys_to_all_heads_are_found() -> None:
    q, kv = torch.randn(2, 8, 32, 16), torch.randn(2, 2, 32, 16)

    def step() -> torch.Tensor:
        k = kv[:, :, None].expand(2, 2, 4, 32, 16).reshape(2, 8, 32, 16)
        return F.scaled_dot_product_attention(q, k, k)

    assert "repeat-kv" in ids(diagnose(timed(recorded(step))))


def test_the_dense_gradient_of_a_large_table_is_found_and_that_of_a_small_one_is_not() -> None:
    for rows, found in ((10_000, True), (16, False)):
        table = nn.Embedding(rows, 4)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        indices = torch.arange(8)

        def step(table: nn.Embedding = table, optimizer: Any = optimizer, indices: torch.Tensor = indices) -> None:
            optimizer.zero_grad()
            table(indices).sum().backward()
            optimizer.step()

        assert ("sparse-gradient" in ids(diagnose(timed(recorded(step))))) is found


def test_a_loop_over_items_is_vectorised_and_a_chain_of_layers_is_not() -> None:
    rows, layers = torch.randn(32, 16), nn.Sequential(*(nn.Linear(16, 16) for _ in range(12))).requires_grad_(False)
    loop = recorded(lambda: torch.stack([row.sin().cos() for row in rows]))
    assert "vectorise" in ids(diagnose(timed(loop, op_s=2e-6)))
    assert "vectorise" not in ids(diagnose(timed(recorded(lambda: layers(rows)), op_s=2e-6)))


def test_a_growing_prefix_asks_for_a_kv_cache() -> None:
    layer, x = nn.Linear(16, 16).requires_grad_(False), torch.randn(64, 16)
    growing = recorded(lambda: [layer(x[:n]) for n in range(8, 24)])
    alike = recorded(lambda: [layer(x[n : n + 8]) for n in range(8, 24)])
    assert "kv-cache" in ids(diagnose(timed(growing)))
    assert "kv-cache" not in ids(diagnose(timed(alike)))


def test_an_optimizer_in_many_ops_is_fused() -> None:
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(12))
    x = torch.randn(2, 4)

    def stepping(**options: bool) -> Session:
        optimizer = torch.optim.AdamW(layers.parameters(), **options)

        def step() -> None:
            sum(layer(x).sum() for layer in layers).backward()  # type: ignore[union-attr]
            optimizer.step()

        return recorded(step)

    assert "fused-optimizer" in ids(diagnose(timed(stepping(foreach=False), op_s=2e-5)))
    assert "fused-optimizer" not in ids(diagnose(timed(stepping(fused=True), op_s=2e-5)))


def test_anomaly_detection_is_seen_in_the_backward_pass() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(4, 8)

    def step() -> None:
        with torch.autograd.set_detect_anomaly(True, check_nan=True):
            model(x).sum().backward()

    assert "anomaly" in ids(diagnose(timed(recorded(step))))
    assert "anomaly" not in ids(diagnose(timed(recorded(lambda: model(x).sum().backward()))))


# -- what holds of every diagnosis


def test_gains_lie_in_their_intervals_and_within_the_step_and_shares_sum_to_one() -> None:
    q, k, v = (torch.randn(2, 4, 32, 16) for _ in range(3))
    for session in (recorded(lambda: attention(q, k, v)), recorded(a_step)):
        found = diagnose(timed(session))
        assert sum(found.shares.values()) == pytest.approx(1)
        assert found.confidence == found.shares[found.regime.value]
        for each in found.findings:
            assert 0 <= each.predicted_gain_low_s <= each.predicted_gain_s <= each.predicted_gain_high_s <= found.step_s
            assert each.predicted_gain_s <= each.seconds_lost
        assert sum(each.after_others_s for each in found.findings) <= found.step_s


def test_a_program_of_no_op_has_no_finding() -> None:
    with rl.record() as recording:
        pass
    found = diagnose(rl.analyze(recording.session, get("H100-SXM5-80GB")))
    assert found.findings == ()
    assert found.step_s == 0


def test_a_session_for_a_gpu_without_times_says_what_is_missing() -> None:
    found = diagnose(rl.analyze(recorded(a_step), get("H100-SXM5-80GB")))
    assert found.source == "bound"
    assert any("--predict" in each for each in found.missing)


class Attends(torch.nn.Module):
    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return attention(q, q, q)


def test_the_first_screen_names_the_line_of_a_users_own_module(tmp_path) -> None:
    model, q = Attends(), torch.randn(2, 4, 32, 16)
    with rl.record(model) as recording:
        model(q)
    session = rl.load(recording.session.save(tmp_path / "a.session"))
    first = attention.__code__.co_firstlineno
    assert {place.function for place in session.places[1:]} == {"attention"}
    lines = {f"tests/diagnosis/test_diagnose.py:{number}" for number in range(first, first + 9)}
    report = in_brief(report_of(analysis := timed(session), found=diagnose(analysis)), "a.session")
    assert report.brief.conclusion.startswith("First: attention written out")
    assert report.brief.table("findings").rows[0][1].rpartition(", ")[2].partition(" from ")[0] in lines
    (next_steps,) = report.brief.notes
    assert next_steps.startswith(
        "rooflight diagnose a.session has the evidence, rooflight analyze (the same) all tables"
    )


def test_reports_have_the_findings_and_the_regime() -> None:
    from rooflight.diagnosis.tables import report_of

    q, k, v = (torch.randn(2, 4, 32, 16) for _ in range(3))
    analysis = timed(recorded(lambda: attention(q, k, v)))
    report = report_of(analysis, diagnose(analysis))
    assert report.table("findings") is not None
    assert "regime" in dict(report.facts)
    assert report.conclusion.startswith("First: attention written out")


def test_every_finding_has_an_id_of_its_own_which_the_reference_lists() -> None:
    from importlib import import_module
    from pkgutil import iter_modules

    from rooflight.diagnosis import remedies
    from rooflight.diagnosis.draft import Remedy

    modules = [import_module(f"rooflight.diagnosis.remedies.{each.name}") for each in iter_modules(remedies.__path__)]
    found = {each for module in modules for each in vars(module).values() if isinstance(each, Remedy)}
    listed = (Path(__file__).parents[2] / "docs" / "reference" / "findings.csv").read_text()
    rows = [["id", "finding", "remedy", "verify"]]
    rows += sorted([each.id, each.title, each.remedy, each.verify] for each in found)
    assert len({each.id for each in found}) == len(found)
    assert [each.short for each in found if len(each.short) > 45 or ": " in each.short] == []
    assert [*csv.reader(listed.splitlines())] == rows


def test_products_of_any_rank_are_looked_at_on_a_gpu() -> None:
    x, m = torch.randn(64), torch.randn(64, 64)
    for step in (lambda: x @ x, lambda: m @ x, lambda: x @ m, lambda: m @ m, lambda: torch.stack([m, m]) @ m):
        found = diagnose(timed(recorded(step), device=get("H100-SXM5-80GB")))
        assert found.step_s > 0
    assert "few-tiles" not in ids(diagnose(timed(recorded(lambda: x @ x), device=get("H100-SXM5-80GB"))))


def test_a_loader_between_steps_is_hidden_by_workers_for_which_cores_are_free() -> None:
    session = recorded(a_step)
    step_s = len(session) * (OP_S + GAP_S)
    # 10 steps of computing and one of work on 4 cores; half a step fits beside it; on 1 core nothing does
    for loader_s, cores, short, gain_s in (
        (10 * step_s, 4, "num_workers=4 in the DataLoader", 8.25 * step_s),
        (step_s / 2, 4, "num_workers=1 in the DataLoader", step_s / 2),
        (10 * step_s, 1, "prepare the data once and keep it", 5 * step_s),
    ):
        between = (Between(name="loader", seconds=loader_s, share=loader_s / (loader_s + step_s)),)
        run = Run(script="train.py", exit_code=0, between=between)
        there = timed(replace(session, run=run)).session
        facts = {"cores_usable": str(cores), "torch_threads": "1"}
        found = diagnose(rl.analyze(replace(there, environment=facts), CPU))
        first = next(finding for finding in found.findings if finding.id == "loader")
        assert first.short == short
        assert first.predicted_gain_s == pytest.approx(gain_s)
        assert found.step_s == pytest.approx(loader_s + step_s)


@given(st.floats(1e-6, 1e3), st.floats(0.94, 1.06))
def test_gains_that_noise_would_let_change_places_keep_the_order_of_their_rules(gain_s: float, times: float) -> None:
    def draft(name: str, gain_s: float) -> Draft:
        remedy = Remedy(id=name, title=name, short=name)
        return Draft(remedy=remedy, regime=None, evidence="", lost_s=gain_s, gain_s=gain_s, low_s=0.5 * gain_s,
                     high_s=gain_s, calls=NO_CALLS)  # fmt: skip

    drafts = [draft("first", gain_s), draft("second", gain_s * times), draft("large", 2 * gain_s)]
    assert [each.remedy.id for each in _ranked(drafts)] == ["large", "first", "second"]
