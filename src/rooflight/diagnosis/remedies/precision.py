"""Precision and layout: formats that the device is slow in, casts back and forth, copies into another order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.diagnosis.remedies.kernels import FAR, UNITS, fill_of
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.records.account import Regime
from rooflight.records.dtypes import item_bytes
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.record import Direction
from rooflight.records.session import STOOD, Int64
from rooflight.records.signature import OpSignature

HALF: Final = Remedy(
    id="half-on-cpu",
    title="half precision, slow on this CPU",
    short="float32 on this CPU",
    rest="or bfloat16 where the CPU has AMX or AVX512-BF16",
    verify="products run at the rate that float32 has here",
)
FLOAT64: Final = Remedy(
    id="float64",
    title="double precision",
    short="dtype=torch.float32 where tensors are made",
    rest=".float() on arrays from NumPy",
    verify="no float64 in the step",
)
LOWER: Final = Remedy(
    id="lower-precision",
    title="float32 where fewer bits may do",
    short="torch.autocast(device, torch.bfloat16)",
    rest="or torch.set_float32_matmul_precision('high')",
    verify="losses and results stay within what you accept",
    waste=False,
)
CASTS: Final = Remedy(
    id="casts",
    title="tensors are cast back and forth",
    short="one dtype for parameters and inputs",
    rest="and for buffers: no .to() in the step",
    verify="fewer _to_copy in the step",
)
COPIES: Final = Remedy(
    id="copies",
    title="copies that compute nothing",
    short="leave out .contiguous(), .clone() and cat",
    rest="layouts that need no copy, one preallocated tensor instead of cat in a loop",
    verify="fewer clone, copy_ and cat in the step",
)
_USUAL, _USUAL_BANDWIDTH, _KERNEL_S = 0.65, 0.85, 3e-6
"""Shares of a GPU's roofs that large products and copies reach, and what a kernel takes besides."""
_HALF: Final = ("float16", "bfloat16")
_SLOW: Final = 8.0
_FAST, _MUCH_SLOWER = 1.5, 6.0  # a CPU with units for half precision; times what float32 would take there
_MUCH: Final = 0.15
COPYING: Final = ("aten::clone", "aten::contiguous", "aten::cat", "aten::copy_", "aten::repeat", "aten::stack")


def half_on_cpu(facts: Facts) -> Iterable[Draft]:
    """Products in half precision on a CPU, slower than float32's peak allows."""
    of = facts.of
    if not of.on_cpu or not of.measured:
        return
    half = of.where_op(any(tensor.dtype in _HALF for tensor in op.inputs) for op in of.session.signatures)
    calls = np.flatnonzero(half & of.works)
    device = of.analysis.device
    peak = device.matrix_peak("float32")
    flops = np.array([getattr(cost, "matrix_flops", 0) or 0 for cost in of.analysis.costs], dtype=np.float64)
    if not len(calls) or not peak:
        return
    multiply = calls[of.products[calls]]
    yield from _slow_in_half(facts, calls[~of.products[calls]])
    if not len(multiply):
        return
    took_s = float(of.seconds[multiply].sum())
    as_float32_s = float(np.maximum(flops[of.signature[multiply]] / (0.6 * peak), of.floor_s).sum())
    roofs = device.calibrated.matrix_flops_per_s if device.calibrated is not None else {}
    fast = any(roofs.get(name, 0.0) > _FAST * peak for name in _HALF)  # then small products are slow for another reason
    if took_s < (_MUCH_SLOWER if fast else 1.5) * as_float32_s:
        return
    rest_s = 0.3 * (facts.spared(calls) - facts.spared(multiply))
    text = (
        f"{count_of(len(multiply), 'product')} take {Quantity(took_s, 's')}, about {Quantity(as_float32_s, 's')} in "
        f"float32 at 60% of its peak"
    )
    gain_s = of.gain(took_s - as_float32_s) + rest_s
    yield from facts.draft(HALF, calls, text, gain_s=gain_s, regime=Regime.COMPUTE)


def _slow_in_half(facts: Facts, calls: Int64) -> Iterable[Draft]:
    """Ops that only move data, so slow in half precision that their kernels must convert each number."""
    of = facts.of
    slow = calls[of.seconds[calls] > _SLOW * np.maximum(of.bound_s[calls], of.floor_s)] if len(calls) else calls
    took = f"{Quantity(facts.spared(slow), 's')}, many times their bound"
    text = f"{count_of(len(slow), 'op')} ({of.names(slow)}) take {took}"
    if facts.spared(slow) > 2 * _MUCH * of.step_s:
        yield from facts.draft(HALF, slow, text, gain_s=facts.spared(slow, 0.5))


def double(facts: Facts) -> Iterable[Draft]:
    """Work on float64."""
    of = facts.of
    wide = of.where_op(any(t.dtype in ("float64", "complex128") for t in op.outputs) for op in of.session.signatures)
    calls = np.flatnonzero(wide & of.works & ~facts.values.constant)
    cast = np.intersect1d(calls, of.named("aten::_to_copy"))
    if not len(calls) or 4 * len(cast) > len(calls):  # casts there and back have a finding of their own
        return
    work_s = float(np.maximum(of.seconds[calls] - of.floor_s, 0.0).sum())
    moved = of.total(lambda op: op.output_bytes, calls)
    text = f"{count_of(len(calls), 'op')} write {Quantity(moved, 'B')} in double precision{of.places(calls)}"
    yield from facts.draft(FLOAT64, calls, text, gain_s=of.gain(0.5 * work_s))


def lower(facts: Facts) -> Iterable[Draft]:
    """float32 on a GPU with faster formats: TF32 for the products, or 16 bits for all but the optimizer."""
    of, device = facts.of, facts.of.analysis.device
    if of.on_cpu or of.source == "bound":
        return
    signatures, costs, float32 = of.session.signatures, of.analysis.costs, of.analysis.float32
    dtypes = [{tensor.dtype for tensor in op.inputs} for op in signatures]
    # a sum of exponentials is float32 beside an attention's 16 bits, too
    full = of.where_op("float32" in each and each.isdisjoint(_HALF) for each in dtypes)
    full &= of.works & ~of.collectives & ~of.crosses & (of.direction != Direction.OPTIMIZER)
    full &= of.bound_s > FAR * of.seconds  # what is far from its bound is slow for another reason
    plain = of.where_op(float32.precision_of(op) == "float32" for op in signatures)
    peaks, now = {each: device.matrix_peak(each) for each in ("tfloat32", "bfloat16")}, device.matrix_peak("float32")
    best: tuple[float, Int64, str] = (0.0, np.empty(0, dtype=np.int64), "")
    for precision, chosen in (("tfloat32", full & of.products & plain), ("bfloat16", full)):
        peak, calls = peaks[precision], np.flatnonzero(chosen)
        if not peak or not now or peak < 1.5 * now or not len(calls):
            continue
        then = [_least_s(op, cost, device, peak, halved=precision == "bfloat16")
                for op, cost in zip(signatures, costs, strict=True)]  # fmt: skip
        spared_s = float(np.maximum(of.seconds[calls] - np.array(then)[of.signature[calls]], 0.0).sum())
        spared_s = of.gain(min(spared_s, float(of.seconds[calls].sum())))
        if spared_s > 1.2 * best[0]:  # fewer bits have to be worth it
            best = spared_s, calls, precision
    spared_s, calls, precision = best
    share = percent(float(of.seconds[calls].sum()) / max(of.device_total_s, 1e-12)) if len(calls) else ""
    multiply = int(of.products[calls].sum()) if len(calls) else 0
    if not multiply and (of.products & ~full).any():  # autocast is on: what is left in float32 it leaves so on purpose
        return
    text = f"{count_of(len(calls), 'op')} in float32, {multiply:,} of them products, take {share} of the device's time"
    text += f"; in {precision} about {Quantity(spared_s, 's')} less"
    regime = Regime.COMPUTE if multiply else Regime.MEMORY
    yield from facts.draft(LOWER, calls, text, gain_s=spared_s, regime=regime, low=0.5, high=1.4)


def _least_s(op: OpSignature, cost: OpCost | Uncosted, device: DeviceSpec, peak: float, *, halved: bool) -> float:
    """About what an op takes at another matrix peak, and with ``halved`` bytes: as products and copies usually do."""
    if isinstance(cost, Uncosted):
        return inf
    moved = cost.bytes_moved * (0.5 if halved else 1.0)
    needs_s = cost.matrix_flops / (_USUAL * fill_of(op, device.unit_count or UNITS) * peak)
    return max(needs_s, moved / (_USUAL_BANDWIDTH * (device.dram_bytes_per_s or inf))) + _KERNEL_S


def casts(facts: Facts) -> Iterable[Draft]:
    """Casts of what was cast before."""
    of = facts.of
    cast = of.where_op(
        op.name == "aten::_to_copy" and bool(op.inputs) and bool(op.outputs)
        and op.inputs[0].dtype != op.outputs[0].dtype for op in of.session.signatures
    )  # fmt: skip
    fixed = facts.values.constant
    if not facts.values.known or not cast.any():
        return
    back: set[int] = set()
    came: dict[int, tuple[str, int]] = {}  # by storage: the dtype before its cast, and that
    wider: dict[int, tuple[float, int]] = {}  # by call: the share of its bytes, and the cast before it
    for call in np.flatnonzero(of.works & ~of.products).tolist():
        op = of.op(call)
        known = next((came[storage] for storage in of.reads[call] if storage in came), None)
        for storage in of.writes[call]:
            came.pop(storage, None)
            if cast[call] and not fixed[call]:
                came[storage] = (op.inputs[0].dtype, call)
            elif known is not None and op.inputs and op.outputs and op.outputs[0].shape == op.inputs[0].shape:
                came[storage] = known  # what lies between two casts is pointwise
                wider[call] = 1 - item_bytes(known[0]) / item_bytes(op.outputs[0].dtype), known[1]
        if cast[call] and known is not None and known[0] == op.outputs[0].dtype:
            back |= {known[1], call}
    yield from _cast_each_step(facts, [call for call in np.flatnonzero(cast & ~fixed).tolist() if call not in back])
    text = f"{count_of(len(back), 'cast')} there and back: {Quantity(facts.spared(back), 's')}{of.places(back)}"
    between = {call: share for call, (share, begun) in wider.items() if begun in back}
    gain_s = facts.spared(back) + _narrowed(facts, between)
    yield from facts.draft(CASTS, [*back, *between], text, gain_s=gain_s, regime=Regime.MEMORY)


def _narrowed(facts: Facts, shares: Mapping[int, float]) -> float:
    """What calls that compute in a wider dtype save without the cast before them, by the share of their bytes."""
    return facts.spared_alone((call, share) for call, share in shares.items() if share > 0)


def _cast_each_step(facts: Facts, calls: Sequence[int]) -> Iterable[Draft]:
    """Casts of tensors from before the step, if they take much of it."""
    of, lifetimes = facts.of, facts.of.session.lifetimes
    if lifetimes is None:
        return
    stood = [call for call in calls if all(lifetimes.made[storage] == STOOD for storage in of.reads[call])]
    if facts.spared(stood) < _MUCH * of.step_s:
        return
    moved = of.total(lambda op: op.output_bytes, stood)
    wider = {reader: 1 - of.op(call).input_bytes / max(1, of.op(call).output_bytes) for call in stood
             for storage in of.writes[call] for reader in of.readers[storage] if of.works[reader]}  # fmt: skip
    gain_s = facts.spared(stood) + _narrowed(facts, wider)
    text = f"{count_of(len(stood), 'cast')} of tensors from before the step: {Quantity(moved, 'B')}{of.places(stood)}"
    yield from facts.draft(CASTS, [*stood, *wider], text, gain_s=gain_s, regime=Regime.MEMORY)


def copies(facts: Facts) -> Iterable[Draft]:
    """Copies that compute nothing."""
    of = facts.of
    copying = np.zeros(len(of.records), dtype=np.bool_)
    copying[of.named(*COPYING)] = True
    elsewhere = facts.values.constant | of.collectives | of.crosses
    calls = np.flatnonzero(copying & (of.direction != Direction.OPTIMIZER) & ~elsewhere)
    big = calls[of.seconds[calls] > 3 * of.floor_s] if len(calls) else calls
    moved = of.total(lambda op: op.output_bytes, big)
    text = f"{count_of(len(big), 'copy', 'copies')} of {Quantity(moved, 'B')}{of.places(big)}"
    # in the place of a concatenation stands a copy into what is there: as many calls
    joins = np.intersect1d(big, of.named("aten::cat", "aten::stack"))
    gain_s = (
        facts.spared(big)
        if of.on_cpu
        else of.gain(float(of.seconds[big].sum()), float(of.host_s[np.setdiff1d(big, joins)].sum()))
    )
    if gain_s < 0.1 * of.step_s:
        return
    yield from facts.draft(COPIES, big, text, gain_s=gain_s, regime=Regime.MEMORY)


RULES: Final = (half_on_cpu, double, lower, casts, copies)
