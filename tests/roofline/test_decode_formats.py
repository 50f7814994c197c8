"""What a decode step would be with weights and KV cache of fewer bits: bytes, bounds, memory, batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rooflight.front.options import RunOptions
from rooflight.front.sessions import analyze, predicted
from rooflight.front.targets import analyze_target
from rooflight.records.estimate import Estimate, Source
from rooflight.roofline.decode_formats import decode_formats
from rooflight.roofline.tables.document import analysis_data
from rooflight.roofline.tables.report import report_of

DEVICE, BATCH = "H100-SXM5-80GB", 4


def step(**options):
    asked = RunOptions(**{"step": "decode", "batch": BATCH, "small": True, "dtype": "bf16", **options})
    return analyze_target("gpt2", asked, device=DEVICE, progress=lambda *_: None)[0]


@pytest.fixture(scope="module")
def analysis():
    return step()


@pytest.fixture(scope="module")
def formats(analysis):
    return {(each.weights, each.cache): each for each in decode_formats(analysis)}


def test_the_program_s_own_formats_have_its_own_figures(analysis, formats):
    own = next(iter(formats.values()))
    assert (own.weights, own.cache) == ("bf16", "bf16")
    assert own.program_bound_s == analysis.program.program_bound_s
    assert own.tokens_per_s == BATCH / own.program_bound_s
    assert own.memory_bytes == analysis.memory.peak_bytes
    assert own.weight_bytes == analysis.memory.by_kind.parameter


def test_as_many_bytes_less_are_moved_and_held(analysis, formats):
    bandwidth, own = 3.352e12, formats["bf16", "bf16"]
    weights, cached = (analysis.fusion.stood_by_kind[kind] for kind in (1, 0))  # parameters, inputs
    assert weights + cached == pytest.approx(analysis.program.compulsory_bytes, rel=0.05)
    for names, less in (
        (("bf16", "fp8"), cached / 2),
        (("int8", "bf16"), weights / 2),
        (("int4", "fp8"), weights * 3 / 4 + cached / 2),
    ):
        found = formats[names]
        assert own.program_bound_s - found.program_bound_s == pytest.approx(less / bandwidth, rel=1e-3)
    held = formats["int4", "fp8"]
    assert held.weight_bytes == own.weight_bytes // 4
    assert held.cache_bytes == own.cache_bytes // 2
    saved = own.weight_bytes - held.weight_bytes + own.cache_bytes - held.cache_bytes
    assert held.memory_bytes == own.memory_bytes - saved


def test_no_larger_batch_fits(analysis, formats):
    for each in formats.values():
        rest, sequence = each.memory_bytes - each.cache_bytes, each.cache_bytes / BATCH
        assert rest + each.largest_batch * sequence <= analysis.memory.device_bytes
        assert rest + (each.largest_batch + 1) * sequence > analysis.memory.device_bytes


def test_no_longer_context_fits(analysis, formats):
    (length,) = {op.inputs[1].shape[-2] for op in analysis.session.signatures if "attention" in op.name}
    assert length == 257  # 256 cached tokens and the new one
    for each in formats.values():
        rest, token = each.memory_bytes - each.cache_bytes, each.cache_bytes / length
        assert rest + each.longest_context * token <= analysis.memory.device_bytes
        assert rest + (each.longest_context + 1) * token > analysis.memory.device_bytes


def windowed(analysis, layers):
    """The same step where so many layers keep 64 tokens of 256."""
    session = analysis.session
    number, attention = next((n, op) for n, op in enumerate(session.signatures) if "attention" in op.name)
    query, *rest = attention.inputs
    short = replace(attention, inputs=(query, *(replace(each, shape=(4, 4, 64, 32)) for each in rest)))
    signature = session.columns.signature.copy()
    signature[np.flatnonzero(signature == number)[:layers]] = len(session.signatures)
    columns = replace(session.columns, signature=signature)
    return analyze(replace(session, signatures=(*session.signatures, short), columns=columns), DEVICE)


def test_a_layer_with_a_window_keeps_no_more_of_a_longer_context(analysis, formats):
    calls = sum(op.calls for op in analysis.operations if "attention" in op.name)
    assert {each.longest_context for each in decode_formats(windowed(analysis, calls))} == {None}
    (first, *_), (half, *_) = formats.values(), decode_formats(windowed(analysis, calls // 2))
    room = first.longest_context / 257  # by how much the cache may grow; of 257 + 64 parts 257 grow
    assert half.longest_context == pytest.approx(257 * (room * (257 + 64) - 64) / 257, rel=1e-3)


class ByBytes:
    """A predictor: each byte that an op touches takes a nanosecond."""

    def predict_many(self, works, device):
        times = [1e-9 * (op.input_bytes + op.output_bytes) for (op,) in works]
        about = {"source": Source.REGRESSED, "extrapolated": False, "bound_s": 0.0}
        return [Estimate(time_s=each, low_s=each / 2, high_s=2 * each, **about) for each in times]


def test_operands_of_fewer_bits_are_predicted(analysis, formats):
    """Where a byte takes a nanosecond, half the bytes of products' operands take as much less."""
    known = {(each.weights, each.cache): each for each in decode_formats(predicted(analysis, ByBytes()))}
    products = [each for each in analysis.operations if each.signature.name in ("aten::addmm", "aten::mm")]
    attention = [each for each in analysis.operations if "attention" in each.signature.name]
    halved = sum(each.calls * (each.signature.input_bytes / 2) for each in products)
    bias = sum(each.calls * each.signature.inputs[0].nbytes / 2 for each in products if "addmm" in each.signature.name)
    keys = sum(each.calls * sum(tensor.nbytes for tensor in each.signature.inputs[1:3]) / 2 for each in attention)
    own = known["bf16", "bf16"].predicted_s
    for names, less in (
        (("fp8", "bf16"), halved - bias),
        (("bf16", "int8"), keys),
        (("int8", "fp8"), halved - bias + keys),
    ):
        found = known[names]
        assert own - found.predicted_s == pytest.approx(less * 1e-9)
        assert found.predicted_low_s <= found.predicted_s <= found.predicted_high_s
    assert known["int4", "bf16"].predicted_s is None
    assert {each.predicted_s for each in formats.values()} == {None}


def test_formats_without_a_peak_are_not_predicted(analysis):
    there = predicted(analyze(analysis.session, "A100-SXM4-80GB"), ByBytes())
    known = {(each.weights, each.cache): each.predicted_s for each in decode_formats(there)}
    assert known["fp8", "bf16"] is None
    assert known["bf16", "fp8"] is None
    assert known["int8", "int8"] is not None


def test_fewer_bits_are_never_slower_nor_larger(formats):
    bits = {"bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
    for (weights, cache), one in formats.items():
        for (lighter, smaller), other in formats.items():
            if bits[lighter] <= bits[weights] and bits[smaller] <= bits[cache]:
                assert other.program_bound_s <= one.program_bound_s
                assert other.memory_bytes <= one.memory_bytes


def test_arithmetic_runs_at_the_highest_peak_of_the_formats(analysis):
    """At so little bandwidth for each FLOP that only arithmetic counts: fp8 products at twice the rate of bf16's."""
    slow = replace(
        analysis.device.datasheet,
        matrix_flops_per_s={"bfloat16": 1e6, "float8": 2e6},
        vector_flops_per_s={"float32": 1e12},
    )
    weak = analyze(analysis.session, replace(analysis.device, datasheet=slow), target="weak")
    found = {(each.weights, each.cache): each.program_bound_s for each in decode_formats(weak)}
    assert found["fp8", "bf16"] == pytest.approx(found["bf16", "bf16"] / 2)
    assert found["int8", "bf16"] == found["bf16", "bf16"]  # it lists no rate for int8
    assert found["int4", "bf16"] == found["fp8", "bf16"]


@pytest.mark.parametrize("options", [{"step": "forward"}, {"dtype": "fp32"}])
def test_other_steps_and_formats_have_none(options):
    other = step(**options)
    assert decode_formats(other) == ()
    assert report_of(other).table("decode_formats") is None


def test_the_report_has_a_row_each(analysis, formats):
    report = report_of(analysis)
    found = report.table("decode_formats")
    assert found is not None
    assert len(found.rows) == len(formats) == 12
    assert analysis_data(analysis, "").decode_formats == tuple(formats.values())
