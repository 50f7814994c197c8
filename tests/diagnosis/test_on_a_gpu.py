"""The diagnosis of programs for a GPU: by predictions on meta tensors, and of traces of one op."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import op, spec
from sessions import Call, session_of

import rooflight as rl
from rooflight.diagnosis.diagnose import diagnose
from rooflight.diagnosis.evidence import Evidence
from rooflight.diagnosis.remedies.devices import with_devices
from rooflight.records.timeline import Between, Run
from rooflight.roofline.findings import Diagnosis, Regime


def ids(found: Diagnosis) -> list[str]:
    """The findings, in order."""
    return [finding.id for finding in found.findings]


def on_a_gpu(step: Callable[[], Any], **environment: str) -> Diagnosis:
    """The diagnosis of a step on meta tensors, predicted for a GPU."""
    step()
    with rl.record(memory=True) as recording:
        step()
    session = recording.session
    session = replace(session, environment={**session.environment, **environment})
    return diagnose(rl.analyze(session, "H100-SXM5-80GB", predictor=rl.Predictor()))


@pytest.mark.parametrize(("pins", "first", "gain_s"), [("no", "pageable-copy", 1 / 9e9 - 1 / 53.6e9), ("yes", None, 0)])
def test_copies_from_pageable_memory_take_longer_than_pinned_ones(pins: str, first: str | None, gain_s: float) -> None:
    host = torch.empty(32 << 20)
    weight = torch.empty(32 << 20, device="meta")

    found = on_a_gpu(lambda: host.to("meta") * weight, pins_memory=pins)

    of_copies = {each.id: each.predicted_gain_s for each in found.findings}
    assert of_copies.get("pageable-copy", 0.0) == pytest.approx(gain_s * 4 * (32 << 20), rel=0.05)
    assert not {"copies", "poor-bandwidth", "compile"} & set(of_copies)  # the link is slow, and nothing can be merged
    if first:
        assert found.findings[0].id == first


def test_a_predicted_step_gains_nothing_of_collectives_that_its_wall_time_hides() -> None:
    def found(big: int) -> tuple[Diagnosis, float]:
        x, gradients = spec((big, big), "bfloat16"), spec((1 << 26,), "bfloat16")
        reduced = op("c10d::allreduce_", {"tensors": gradients}, [gradients], group_size=8)
        product = op("aten::mm", {"self": x, "mat2": x}, [x])
        calls = [Call(op=reduced, reads=(0,), writes=(0,)), *[Call(op=product, reads=(1, 2), writes=(3,))] * 4]
        analysis = rl.analyze(session_of(calls), "H100-SXM5-80GB", predictor=rl.Predictor())
        exposed_s = Evidence(analysis).exposed_s
        assert exposed_s is not None
        return diagnose(analysis), exposed_s

    hidden, none_s = found(16384)
    bare, much_s = found(256)
    assert none_s < 0.01 * hidden.step_s
    assert not [each for each in hidden.findings if each.id == "overlap"]
    assert hidden.shares[Regime.COMMUNICATION] < 0.02
    assert much_s > 0.5 * bare.step_s
    assert bare.shares[Regime.COMMUNICATION] > 0.5


def test_copies_in_turn_with_work_are_told_to_overlap() -> None:
    parts, weight = [torch.empty(4096, 4096) for _ in range(8)], torch.empty(4096, 4096, device="meta")

    def step() -> None:
        for part in parts:
            at = part.to("meta")
            for _ in range(4):
                at = at @ weight

    found = on_a_gpu(step, pins_memory="yes")

    overlap = next(each for each in found.findings if each.id == "copy-overlap")
    copies_s = 8 * 4 * 4096**2 / (0.85 * 63.015e9)
    # what is shorter than the products hides behind them, but for the first part
    assert overlap.predicted_gain_s == pytest.approx(copies_s * 7 / 8, rel=0.1)


SMALL = torch.empty(8, 8, device="meta")


def many_small(count: int) -> torch.Tensor:
    at = SMALL
    for _ in range(count):
        at = at.relu()
    return at


def test_a_graph_saves_no_launch_where_there_is_one() -> None:
    assert "cuda-graphs" not in ids(on_a_gpu(lambda: many_small(1)))
    graphs = next(each for each in on_a_gpu(lambda: many_small(50)).findings if each.id == "cuda-graphs")
    assert graphs.predicted_gain_s < graphs.seconds_lost


def test_a_bigger_batch_promises_no_seconds_of_the_step() -> None:
    *others, last = on_a_gpu(lambda: many_small(50)).findings
    assert last.id == "bigger-batch"
    assert last.predicted_gain_s == last.predicted_gain_low_s == last.predicted_gain_high_s == 0
    assert "times the samples a second" in last.evidence
    assert all(each.predicted_gain_s for each in others)


LABELLED = {
    "mi300x_gemm_compute_few_tiles": "few-tiles",
    "mi300x_gemm_compute_misaligned": "tile-padding",
    "mi300x_sdpa_long_seq_low_eff": "attention-kernel",
    "mi300x_sdpa_short_seq_overhead": "short-attention",
    "mi300x_elem_add_poor_bw": "poor-bandwidth",
    "synthetic_conv_large_spatial_small_ch": "few-channels",
    "synthetic_conv_depthwise": "depthwise",
    "synthetic_conv_large_dilation": "dilation",
    "synthetic_moe_many_experts_few_tokens": "few-tokens",
    "synthetic_moe_top2_dense": "experts",
    "synthetic_moe_large_capacity": "experts",
}


def test_a_trace_of_one_op_has_the_finding_that_its_label_names() -> None:
    folder = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "traces" / "labelled"
    if not folder.is_dir():
        pytest.skip("needs the traces of ROOFLIGHT_DATA")
    for name, first in LABELLED.items():
        found = diagnose(rl.analyze(str(folder / f"{name}.json.gz"), "MI300X"))
        assert (name, found.findings[0].id) == (name, first)


def test_what_is_not_on_the_critical_path_promises_nothing() -> None:
    big = torch.empty(16384, 16384, device="meta", dtype=torch.bfloat16)
    rows = torch.empty(400, 8, 8, device="meta")

    def hidden_host() -> list[torch.Tensor]:
        at = big @ big @ big
        return [at, *(row.relu() for row in rows)]  # issued while the device multiplies

    behind_device = on_a_gpu(hidden_host)
    alone = on_a_gpu(lambda: [row.relu() for row in rows])
    assert {"vectorise", "cuda-graphs"} <= set(ids(alone))
    assert not {"vectorise", "cuda-graphs", "bigger-batch", "compile"} & set(ids(behind_device))

    single = torch.empty(256, 256, device="meta")

    def hidden_device() -> list[torch.Tensor]:
        return [single @ single, *(row.relu() for row in rows)]  # the device waits for the host

    assert "lower-precision" not in ids(on_a_gpu(hidden_device))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_images_channel_by_channel_are_told_what_the_other_order_brings(layout: torch.memory_format) -> None:
    with torch.device("meta"):
        net = torch.nn.Conv2d(128, 128, 3, padding=1).half().to(memory_format=layout)
        images = torch.empty(64, 128, 56, 56).half().contiguous(memory_format=layout)
    found = on_a_gpu(lambda: net(images))
    told = [*ids(found), *(each.id for each in found.not_worth_it)]
    assert ("channels-last" in told) == (layout is torch.contiguous_format)


@pytest.mark.parametrize("weight_is_computed", [False, True])
def test_group_norms_that_copy_images_back_make_channels_last_slower(weight_is_computed: bool) -> None:
    """A group norm takes contiguous images; a weight that the step computes is contiguous, and so are the images."""
    with torch.device("meta"):
        net = torch.nn.Conv2d(128, 128, 3, padding=1).half()
        norm, images = torch.nn.GroupNorm(8, 128), torch.empty(64, 128, 56, 56).half()

    def step() -> torch.Tensor:
        weight = net.weight - net.weight.mean() if weight_is_computed else net.weight
        return norm(torch.nn.functional.conv2d(images, weight, padding=1).float())  # as autocast does

    reasons = [each.reason for each in on_a_gpu(step).not_worth_it if each.id == "channels-last"]
    assert any("slower" in reason for reason in reasons) == (not weight_is_computed)


def test_another_device_is_offered_where_it_is_predicted_to_take_less() -> None:
    x = torch.empty(4096, 4096, device="meta")
    with rl.record() as recording:
        x @ x
    l4, h100 = (rl.analyze(recording.session, each, predictor=rl.Predictor()) for each in ("L4", "H100-SXM5-80GB"))
    here, there = (each.totals.predicted_wall for each in (l4, h100))

    *_, found = with_devices(diagnose(l4), l4.account, [h100]).findings
    assert (found.id, found.remedy) == ("another-device", "run it on H100-SXM5-80GB")
    assert found.predicted_gain_s == pytest.approx(here.time_s - there.time_s)
    assert found.predicted_gain_low_s == pytest.approx(here.time_s - there.high_s)
    (*_, slower) = with_devices(diagnose(h100), h100.account, [l4]).not_worth_it
    assert (slower.id, slower.title) == ("another-device", "L4")
    # a script's loader takes as long beside any device
    between = (Between(name="loader", seconds=1.0, share=0.9),)
    of_script = replace(recording.session, run=Run(script="train.py", exit_code=0, between=between))
    l4, h100 = (rl.analyze(of_script, each, predictor=rl.Predictor()) for each in ("L4", "H100-SXM5-80GB"))
    assert not [each for each in with_devices(diagnose(l4), l4.account, [h100]).findings if each.id == "another-device"]


def test_what_the_host_computes_before_a_copy_is_the_loaders_and_no_launch() -> None:
    rows, weight = [torch.empty(4096) for _ in range(64)], torch.empty(4096, 1024, device="meta")

    def step() -> torch.Tensor:
        prepared = [row.sin().cos().sin().cos() for row in rows]
        return torch.stack(prepared).to("meta") @ weight

    loader, *others = on_a_gpu(step).findings
    assert loader.id == "loader"
    assert not {"vectorise", "cuda-graphs", "compile"} & {each.id for each in others}
    # 256 ops of the host become those of four workers; the stack, which only moves bytes, is not divided
    assert 0.6 * loader.seconds_lost < loader.predicted_gain_s < 0.8 * loader.seconds_lost


def test_a_concatenation_costs_the_host_as_much_as_the_copy_in_its_place() -> None:
    def grown(size: int) -> Callable[[], torch.Tensor]:
        cache, token = torch.empty(1, size, device="meta"), torch.empty(1, size, device="meta")

        def step() -> torch.Tensor:
            at = cache
            for _ in range(100):
                at = torch.cat([at, token])
            return at

        return step

    assert "copies" not in ids(on_a_gpu(grown(64)))  # launches decide, and are as many
    assert "copies" in ids(on_a_gpu(grown(1 << 22)))


def test_a_host_that_is_late_now_and_then_holds_the_device_up_though_both_take_as_long() -> None:
    big, rows = torch.empty(8192, 8192, device="meta", dtype=torch.bfloat16), torch.empty(300, 8, 8, device="meta")

    def step() -> list[torch.Tensor]:
        return [*(row.relu() for row in rows), big @ big @ big @ big]

    found = next(each for each in on_a_gpu(step).findings if each.id == "cuda-graphs")
    # the products begin when the rows are done, of which each takes 9 µs of the host and 1 to 3 of the device
    assert 300 * 6e-6 < found.seconds_lost < 300 * 8e-6


def test_attention_in_16_bits_keeps_float32_sums_and_is_not_told_to_take_16_bits() -> None:
    query = torch.empty(64, 16, 1024, 64, device="meta", dtype=torch.float16, requires_grad=True)

    def attend() -> None:
        torch.nn.functional.scaled_dot_product_attention(query, query, query).square().sum().backward()

    assert "lower-precision" not in ids(on_a_gpu(attend))
