"""Waste: what is computed again and again, twice, or for nobody."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from rooflight.costs.registry import find, traits_of
from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.diagnosis.evidence import Evidence
from rooflight.records.account import Regime
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.record import Direction, StorageKind
from rooflight.records.session import Int64
from rooflight.records.signature import OpSignature
from rooflight.roofline.account.times import USUAL_OP_S

CONSTANT: Final = Remedy(
    id="constant-work",
    title="what never changes is computed in each step",
    short="compute it once and keep it",
    rest="remove_parametrizations for frozen weights, a buffer for masks, filters and tables, weights cast once",
    verify="the ops are gone from the step, its results are the same",
)
REPEATED: Final = Remedy(
    id="repeated-work",
    title="the same op on the same values, more than once in a step",
    short="compute it once and keep the result",
    rest="in a variable, an attribute (cached_property) or a cache, outside the loop",
)
CHECKPOINTING: Final = Remedy(
    id="checkpointing",
    title="activations are computed again in the backward pass",
    short="no activation checkpointing",
    rest="where the memory suffices, or on fewer layers",
    waste=False,
)
UNREAD: Final = Remedy(
    id="unread",
    title="results that nobody reads",
    short="leave out results that nobody reads",
    rest="auxiliary outputs, statistics that are not logged in this step; of what is sliced, masked or a diagonal, "
    "compute only that part",
)
UNUSED: Final = Remedy(
    id="unused-gradients",
    title="gradients that no optimizer uses",
    short="requires_grad_(False), or detach() if trained",
    rest="no_grad() or detach() keeps a loss from what it does not train",
    verify="fewer ops in the backward pass",
)
_DETACHED: Final = "detach() what this loss does not train"
_DETACHED_HOW: Final = (
    "a discriminator's loss takes fake.detach(); a model that a loss only passes through: requires_grad_(False)"
)
ANOMALY: Final = Remedy(
    id="anomaly",
    title="anomaly detection is on",
    short="set_detect_anomaly(False)",
    rest="but for debugging: it searches each gradient, and keeps each op's stack",
    verify="no isnan in the backward pass",
)
SPARSE: Final = Remedy(
    id="sparse-gradient",
    title="a large embedding's gradient is dense",
    short="nn.Embedding(..., sparse=True)",
    rest="or a smaller or hashed table",
    verify="embedding_dense_backward is gone",
)
ZEROS: Final = Remedy(
    id="mostly-zeros",
    title="products with a matrix of zeros",
    short="d[:, None] * x in place of diag(d) @ x",
    rest="rows looked up by index in place of a product with one_hot; for a diagonal covariance independent normals",
)
_OF_A_VECTOR: Final = (
    "aten::diag_embed",
    "aten::diag",
    "aten::one_hot",
    "aten::scatter",
    "aten::scatter_",
    "aten::eye",
)
_OF_ADAM: Final = tuple(
    f"aten::{name}"
    for name in ("addcdiv_", "_foreach_addcdiv_", "_fused_adam_", "_fused_adamw_", "_foreach_addcmul_", "addcmul_")
)
_WITH_ADAM: Final = "with torch.optim.SparseAdam for the table, which moves the moments of looked-up rows alone"
_WITH_SGD: Final = "which SGD and Adagrad take as they are"
_PART: Final = 0.5
_MOST: Final = 0.97  # of a step: where all is constant, its inputs are, as in a benchmark


def constant(facts: Facts) -> Iterable[Draft]:
    """Work on parameters that stay, and on numbers."""
    of = facts.of
    calls = np.flatnonzero(facts.values.constant & (of.direction == Direction.FORWARD))
    if not len(calls):
        return
    if facts.spared(calls) > _MOST * max(of.step_s, 1e-12):
        return
    took = f"{Quantity(facts.spared(calls), 's')}{of.places(calls)}"
    text = f"{count_of(len(calls), 'op')} ({of.names(calls)}) that read parameters or numbers alone: {took}"
    yield from facts.draft(CONSTANT, calls, text)


def repeated(facts: Facts) -> Iterable[Draft]:
    """Values computed twice: in the forward pass, or by checkpointing in the backward pass."""
    of = facts.of
    again = facts.values.repeated & ~facts.values.constant
    backward = of.direction == Direction.BACKWARD  # in which a checkpoint computes again
    for remedy, calls in (
        (REPEATED, np.flatnonzero(again & ~backward)),
        (CHECKPOINTING, np.flatnonzero(again & backward)),
    ):
        working = calls[of.products[calls]] if len(calls) else calls
        if not len(working) and remedy is CHECKPOINTING:
            continue
        took = f"{Quantity(facts.spared(calls), 's')}{of.places(calls)}"
        text = f"{count_of(len(calls), 'op')} ({of.names(calls)}): {took}"
        gain_s = facts.spared(calls) * (1 + _backward_of(facts, working) * (remedy is REPEATED))
        back = (of.direction == Direction.BACKWARD) & (remedy is REPEATED)
        yield from facts.draft(remedy, calls, text, gain_s=min(gain_s, of.step_s), beside=np.flatnonzero(back))


def _backward_of(facts: Facts, again: Int64) -> float:
    """How many times their own time such products of the forward pass take in the backward pass, by what runs there:
    one product for a convolution, two for others.
    """
    of = facts.of
    total, backward = of.seconds + of.host_s, of.direction == Direction.BACKWARD
    forward = of.direction == Direction.FORWARD
    again = again[forward[again]]  # an optimizer multiplies, too
    if not backward.any() or not len(again):
        return 0.0
    convolves = of.where_op("convolution" in op.name for op in of.session.signatures)
    of_a_kind = convolves if convolves[again].any() else of.products & ~convolves
    each = 1 if convolves[again].any() else 2
    expected, of_again = each * int((of_a_kind & forward).sum()), each * int(of_a_kind[again].sum())
    found = int((of_a_kind & backward).sum())
    runs = float(np.clip((found - (expected - of_again)) / of_again, 0.0, 1.0))  # the share of these with a backward
    with_backward_s = float(total[forward].sum()) * min(1.0, found / expected)
    return runs * float(total[backward].sum()) / max(with_backward_s, 1e-12)


def unread(facts: Facts) -> Iterable[Draft]:
    """Results that are gone without having been read, and gradients of which no optimizer reads any."""
    of = facts.of
    yield from _read_in_part(facts)
    values = facts.values
    for each, found, what in (
        (UNREAD, values.unread, ""),
        (UNREAD, values.statistics, " whose results are kept, and that no op reads: take them every N steps"),
        (UNUSED, values.unused_gradients, ""),
    ):
        calls, remedy = np.flatnonzero(found), each
        if remedy is UNUSED and _trained_elsewhere(of, calls):
            remedy = replace(UNUSED, short=_DETACHED, rest=_DETACHED_HOW)
        took = f"{Quantity(facts.spared(calls), 's')}{of.places(calls)}"
        yield from facts.draft(remedy, calls, f"{count_of(len(calls), 'op')}{what}: {took}")


def _trained_elsewhere(of: Evidence, calls: Int64) -> bool:
    """Whether an optimizer trains all modules of such calls, as it does a generator that another loss reaches."""
    module = of.session.columns.module[of.records]
    forward = np.flatnonzero(np.isin(module, module[calls]) & (of.direction == Direction.FORWARD))
    trained = set(of.writes.of(np.flatnonzero(of.direction == Direction.OPTIMIZER)).tolist())
    read = {number for number in of.reads.of(forward).tolist() if of.kinds[number] == StorageKind.PARAMETER}
    return bool(read) and read <= trained


def _read_in_part(facts: Facts) -> Iterable[Draft]:
    """Work of whose results only a part is read, as of a head over all tokens for the last one, or of a product for its
    diagonal: what the fused bound leaves out of it, and products.
    """
    of = facts.of
    if of.analysis.without_storages or not facts.values.known:
        return
    share = np.ones(len(of.session))
    for record, part in of.analysis.fusion.work.items():
        share[record] = part or 1.0
    share = share[of.records]
    for call in np.flatnonzero(of.products & (share == 1.0)).tolist():
        share[call] = of.share_read(call)
    by_part = of.where_op(traits_of(op).product or _is_pointwise(op) for op in of.session.signatures)
    times = np.bincount(np.concatenate([*of.writes, []]).astype(np.int64), minlength=len(of.session.storage_bytes))
    again = of.writes.by(np.flatnonzero(times > 1))  # what is written in parts is read in parts
    calls = np.flatnonzero((share < _PART) & by_part & ~again & of.works & (of.direction == Direction.FORWARD))
    gain_s = facts.spared_alone(zip(calls.tolist(), (1 - share[calls]).tolist(), strict=True))
    if len(calls):
        text = (
            f"of the results of {count_of(len(calls), 'op')} ({of.names(calls)}) {percent(share[calls].min())} are read"
        )
        yield from facts.draft(UNREAD, calls, text + of.places(calls), gain_s=gain_s)


def _is_pointwise(op: OpSignature) -> bool:
    formula = find(op.name)
    return formula is not None and formula.__module__.endswith(".pointwise")


def mostly_zeros(facts: Facts) -> Iterable[Draft]:
    """Products with a matrix that was made of a vector: a diagonal, or rows of one 1."""
    of = facts.of
    made = set(of.writes.of(of.named(*_OF_A_VECTOR)).tolist())
    if not made:
        return
    for call in np.flatnonzero(of.works & ~of.products).tolist():  # scaled or cast, it has as many zeros
        if made & set(of.reads[call]) and len(of.op(call).outputs) == 1:
            made.update(of.writes[call])
    calls = np.flatnonzero(of.products & of.reads.by(made))
    makers = np.flatnonzero(of.works & ~of.products & of.writes.by(made))
    text = f"{count_of(len(calls), 'product')} with a matrix made of a vector"
    if len(calls):
        gain_s = facts.spared(calls, 0.85) + facts.spared(makers)
        yield from facts.draft(ZEROS, [*calls, *makers], text, gain_s=gain_s)


def anomaly(facts: Facts) -> Iterable[Draft]:
    """Searches for NaN after each op of the backward pass."""
    of = facts.of
    backward = of.direction == Direction.BACKWARD
    searches = of.named("aten::isnan", "aten::ne") if backward.any() else np.empty(0, dtype=np.int64)
    searches = searches[backward[searches]] if len(searches) else searches
    working = int((backward & of.works).sum())
    if len(searches) < max(4, 0.15 * working):
        return
    found = np.isin(np.arange(len(of.records)), searches)
    calls = np.flatnonzero(backward & (found | np.roll(found, 1) | np.roll(found, 2)) & ~of.products)
    # each op of the forward pass keeps its stack: what views take, which do nothing else, or the shortest ops
    forward = of.direction == Direction.FORWARD
    views_s, works_s = of.op_s[forward & ~of.works], of.op_s[forward & of.works]
    stack_s = float(np.median(views_s)) if len(views_s) else float(np.percentile(works_s, 10)) if len(works_s) else 0.0
    stacks_s = of.gain(max(0.0, stack_s - USUAL_OP_S) * int(forward.sum()))
    text = f"{count_of(len(searches), 'search', 'searches')} for NaN in {working:,} ops of the backward pass"
    gain_s = facts.spared(calls) + stacks_s
    yield from facts.draft(ANOMALY, calls, text, gain_s=gain_s, regime=Regime.OVERHEAD)


def sparse_gradients(facts: Facts) -> Iterable[Draft]:
    """Dense gradients of tables of which few rows were read."""
    of = facts.of
    calls: list[int] = []
    backward = of.direction == Direction.BACKWARD
    spared_s, rows_in_all, looked_up = 0.0, 0, 0
    for call in of.named("aten::embedding_dense_backward", "aten::embedding_backward").tolist():
        op = of.op(call)
        rows = op.outputs[0].shape[0] if op.outputs and op.outputs[0].shape else 0
        indices = min((tensor.numel for tensor in op.inputs), default=rows)
        if rows < 8 * indices or not rows:
            continue
        gradient = set(of.writes[call])
        touching = [each for storage in gradient for each in of.readers[storage] if each > call]
        sums = {storage for each in touching for storage in of.writes[each] if backward[each]} - gradient
        touching += [each for storage in sums for each in of.readers[storage] if each > max(touching)]
        # an optimizer's op on many parameters is shared by their bytes
        shares = [min(1.0, op.output_bytes / max(1, of.op(each).input_bytes) * 2) for each in touching]
        share = 1 - indices / rows
        parts = [part * share for part in shares]
        spared_s += facts.spared_alone([(call, share), *zip(touching, parts, strict=True)])
        calls += [call, *touching]
        rows_in_all, looked_up = rows_in_all + rows, looked_up + indices
    adam = len(of.named(*_OF_ADAM)) > 0
    remedy = replace(SPARSE, rest=f"{_WITH_ADAM if adam else _WITH_SGD}; {SPARSE.rest}")
    text = f"{rows_in_all:,} rows are written and updated for {looked_up:,} that were looked up"
    yield from facts.draft(remedy, calls, text, gain_s=spared_s, regime=Regime.MEMORY)


RULES: Final = (constant, repeated, unread, mostly_zeros, anomaly, sparse_gradients)
