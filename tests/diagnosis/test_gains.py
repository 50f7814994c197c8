"""What remedies promise: each gain by hand, of steps whose ops take 1 ms each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from test_diagnose import GAP_S, OP_S, facts_of, ids, recorded, timed
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from tracked import CPU

from rooflight.diagnosis.diagnose import diagnose
from rooflight.diagnosis.evidence import Evidence
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.records.account import Place
from rooflight.records.timeline import Compilation, HostLine, HostTime, Within
from rooflight.roofline.findings import Finding


def first(step: Any, name: str) -> Finding:
    """The finding of such an id in a step."""
    return next(each for each in diagnose(timed(recorded(step))).findings if each.id == name)


def test_the_call_after_a_view_takes_the_views_time() -> None:
    x = torch.randn(8, 8)
    of = Evidence(timed(recorded(lambda: x.t().unsqueeze(0).relu().squeeze(0))))
    relu = int(of.named("aten::relu")[0])
    assert of.seconds.sum() == pytest.approx(OP_S)
    assert of.host_s[relu] == pytest.approx(3 * OP_S + 4 * GAP_S, rel=1e-3)
    assert of.host_s.sum() + of.seconds.sum() == pytest.approx(of.step_s)


def test_what_steps_take_longer_than_profiled_ones_is_no_python_if_nothing_follows_their_last_op() -> None:
    x = torch.randn(8, 8)
    analysis = timed(recorded(lambda: x.cos().sin().exp()))
    assert analysis.measurement is not None
    analysis.measurement.wall_samples_s[:] += 5e-3
    wall_s = float(analysis.measurement.wall_samples_s[0])
    for after_s, long_s, usual_s in ((None, 5e-3, 5e-5), (1e-3, 1e-3, 3 * GAP_S + 1e-3), (0.0, 0.0, 2 * GAP_S)):
        object.__setattr__(analysis.measurement, "host", HostTime(cpu_s=wall_s, after_s=after_s))
        of = Evidence(analysis)
        assert of.long_gaps_s == pytest.approx(long_s, rel=0.01, abs=1e-9)
        assert of.host_s.sum() <= usual_s * 1.01


def test_a_gap_is_spared_where_both_its_neighbours_are() -> None:
    x = torch.randn(8, 8)
    analysis = timed(recorded(lambda: x.cos().sin().exp()))
    assert analysis.measurement is not None
    analysis.measurement.op_starts_s[:, 1:] += 5e-3  # before the second call
    analysis.measurement.wall_samples_s[:] += 5e-3
    host = HostTime(cpu_s=float(analysis.measurement.wall_samples_s[0]))
    object.__setattr__(analysis.measurement, "host", host)
    of = Evidence(analysis)
    assert of.long_gaps_s == pytest.approx(5e-3, rel=0.01)
    assert of.gaps_within(np.array([0, 1])) == pytest.approx(5e-3, rel=0.01)
    assert of.gaps_within(np.array([1, 2])) == 0


def test_the_host_does_no_more_between_ops_than_its_cpu_time_says() -> None:
    x = torch.randn(8, 8)
    session = recorded(lambda: x.cos().sin())
    lines = (
        HostLine(where=Place(file="a.py", line=1, function="f"), within=Within.ITSELF, seconds=0.022, asleep_s=0.0),
    )
    busy = Evidence(timed(session, waits_s=0.02, host=HostTime(cpu_s=0.012, lines=lines)))
    assert busy.long_gaps_s == pytest.approx(0.01, rel=0.01)  # 12 ms of CPU, 2 of them in ops
    assert busy.gain(other_s=0.01) == pytest.approx(0.01 * busy.step_s / 0.012, rel=0.01)  # others stretch all alike


def test_parametrizations_of_frozen_weights_are_constant_with_their_buffers() -> None:
    layer, x = spectral_norm(nn.Linear(8, 8)), torch.randn(4, 8)
    layer(x)
    layer.eval().requires_grad_(False)
    facts = facts_of(recorded(lambda: layer(x)))
    working = [facts.of.op(call).name for call in np.flatnonzero(facts.of.works & ~facts.values.constant).tolist()]
    assert working == ["aten::addmm"]
    layer.train()  # the buffers are written
    assert not facts_of(recorded(lambda: layer(x))).values.constant.any()


@pytest.mark.parametrize("kept", [True, False])
def test_statistics_that_a_training_step_keeps_and_no_op_reads_are_a_finding(kept: bool) -> None:
    model, seen, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), {}, torch.randn(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if kept:
        model[0].register_forward_hook(lambda _, __, out: seen.update(std=out.detach().std(), top=out.detach().amax()))

    def step() -> torch.Tensor:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    facts = facts_of(recorded(step))
    names = [facts.of.op(call).name for call in np.flatnonzero(facts.values.statistics)]
    assert names == (["aten::std", "aten::amax"] if kept else [])


def test_layers_one_after_the_other_are_no_body_of_a_loop() -> None:
    model, x = nn.Sequential(*[nn.Linear(8, 8) for _ in range(12)]).requires_grad_(False), torch.randn(4, 8)
    rows = torch.randn(12, 8)

    def step() -> torch.Tensor:
        return torch.stack([row.cos() for row in rows]).sum() + model(x).sum()

    found = {each.id: each for each in diagnose(timed(recorded(step), op_s=1e-5)).findings}
    assert found["vectorise"].predicted_gain_s <= 12 * 3 * (1e-5 + GAP_S) * 1.01  # a row is select and cos, at most


def test_what_is_computed_twice_spares_its_backward_pass_only_if_it_has_one() -> None:
    encoder, x = nn.Sequential(nn.Conv1d(3, 3, 3), nn.ReLU(), nn.Conv1d(3, 3, 3)), torch.randn(2, 3, 16)

    def twice(*, graded: bool) -> None:
        encoder.zero_grad()
        with torch.set_grad_enabled(graded):
            one = encoder(x)
        (encoder(x) + one).sum().backward()

    alone, both = (first(lambda g=graded: twice(graded=g), "repeated-work") for graded in (False, True))
    assert alone.predicted_gain_s == pytest.approx(4 * OP_S, rel=0.01)  # a view of the bias or input, too
    assert both.predicted_gain_s > 1.5 * alone.predicted_gain_s


def test_an_optimizer_that_multiplies_twice_has_no_backward_pass_to_spare() -> None:
    scale = nn.Parameter(torch.ones(8, 8))

    class Twice(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            with torch.no_grad():
                self.seen = scale @ scale, scale @ scale
            return super().step(closure)

    optimizer = Twice([scale], lr=0.1, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        scale.cos().sum().backward()
        optimizer.step()

    assert first(step, "repeated-work").predicted_gain_s == pytest.approx(OP_S, rel=0.01)


def test_what_lies_between_casts_to_a_wider_dtype_and_back_gains_its_half() -> None:
    x = torch.randn(64, 64)
    y = torch.randn(64, 64)
    found = first(lambda: (x.double().cos().float(), y.double().sin()), "casts")  # the second stays wide
    assert found.predicted_gain_s == pytest.approx(2.5 * OP_S, rel=0.01)


def test_a_matrix_of_zeros_is_not_made_either() -> None:
    x, d = torch.randn(64, 64), torch.randn(64)
    found = first(lambda: torch.diag(d).mul(2) @ x, "mostly-zeros")
    assert found.predicted_gain_s > 2.8 * OP_S  # and 0.85 of the product


def test_loops_that_compiled_code_gave_up_are_not_advised_to_be_written_anew() -> None:
    rows = torch.randn(64, 8)
    session = recorded(lambda: torch.stack([row.cos() for row in rows]))
    plain = diagnose(timed(session, op_s=1e-5))
    gave_up = (Compilation(where=Place(file="a.py", line=1, function="f"), times=8, limited=True, reason="x"),)
    wall_s = len(session) * (1e-5 + GAP_S)
    compiled = diagnose(timed(session, op_s=1e-5, host=HostTime(cpu_s=wall_s, compilations=gave_up)))
    assert "vectorise" in ids(plain)
    assert "vectorise" not in ids(compiled)


def test_attention_in_one_kernel_still_takes_exponentials() -> None:
    q, k, v = torch.randn(3, 2, 4, 64, 16).unbind(0)

    def written_out() -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v

    found = first(written_out, "sdpa")
    assert found.seconds_lost - found.predicted_gain_s > 0.4 * OP_S


def test_without_roofs_nothing_is_promised_of_products() -> None:
    q, k, v = torch.randn(3, 2, 4, 64, 16).unbind(0)
    session = recorded(lambda: torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v)
    known, unknown = (
        {each.id: each for each in diagnose(timed(session, device=device)).findings}
        for device in (CPU, DeviceSpec(name="a CPU", vendor="", architecture="", kind="cpu"))
    )
    apart_s = known["sdpa"].predicted_gain_s - unknown["sdpa"].predicted_gain_s
    assert apart_s > 0.85 * 2 * OP_S  # of two small products, with the views before them


def test_images_that_a_cpu_pools_number_by_number_are_laid_otherwise() -> None:
    def found(channels: int, op_s: float) -> list[Finding]:
        images = torch.randn(2, channels, 64, 64)
        pooled = timed(recorded(lambda: F.max_pool2d(images, 2)), op_s=op_s)
        return [each for each in diagnose(pooled).findings if each.id == "channels-last"]

    (slow,) = found(16, 0.1)
    assert slow.predicted_gain_s == pytest.approx(0.09, rel=0.01)
    assert not found(16, 1e-5)  # near its bound
    assert not found(3, 0.1)  # fewer than a vector holds


def test_rows_of_a_table_read_twice_are_followed_through_the_sum_of_their_gradients() -> None:
    table, indices = nn.Embedding(5000, 8), torch.arange(4)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        (table(indices) * table(indices + 1)).sum().backward()
        optimizer.step()

    found = first(step, "sparse-gradient")
    assert found.predicted_gain_s > 3.9 * OP_S  # two gradients, their sum, the update


def test_stacks_of_anomaly_detection_take_what_a_view_takes() -> None:
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)

    def step() -> None:
        with torch.autograd.detect_anomaly(check_nan=True):
            F.relu(layer(x)).sum().backward()

    with pytest.warns(UserWarning, match="Anomaly"):
        found = first(step, "anomaly")
    forward = 4  # t, addmm, relu, sum
    assert found.predicted_gain_s > forward * OP_S * 0.95


def test_a_loop_after_the_backward_pass_spares_nothing_in_it_and_is_apart_from_the_models() -> None:
    """Ten averages of three ops, which become one of each; the model's ten projections are another loop."""
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(10)]
    kept, x = [torch.zeros(4, 4) for _ in weights], torch.randn(4, 4)

    def step() -> None:
        torch.stack([x @ weight for weight in weights]).sum().backward()
        with torch.no_grad():
            for average, weight in zip(kept, weights, strict=True):
                average.copy_(average * 0.9 + weight * 0.1)

    found = {each.id: each for each in diagnose(timed(recorded(step))).findings}
    assert found["vectorise"].predicted_gain_s == pytest.approx(40 * 0.9 * OP_S, rel=0.05)  # two mul, add, copy_
    assert found["batch-products"].evidence.startswith("10 calls")
