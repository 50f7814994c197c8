"""Algebra: a larger computation than its result needs, though each op may run at its bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.diagnosis.evidence import Evidence
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.record import Direction, StorageKind
from rooflight.records.session import Int64

ORDER: Final = Remedy(
    id="product-order",
    title="products in an order that computes more",
    short="multiply in the other order, a @ (b @ c)",
    rest="the products are associative: torch.linalg.multi_dot chooses the order",
    verify="the large product between the two is gone",
)
REAL: Final = Remedy(
    id="real-fft",
    title="complex Fourier transforms of real numbers",
    short="torch.fft.rfft and irfft",
    rest="half of a complex transform of real numbers repeats the other half: rfft2, rfftn, and irfft back",
    verify="no _fft_c2c in the step",
)
DECOMPOSED: Final = Remedy(
    id="decompositions",
    title="matrices are decomposed in each step",
    short="decompose every N steps, or svd_lowrank",
    rest="keep the factors between steps; or a few of them, by torch.svd_lowrank or a power iteration",
)
TRAINING_MODE: Final = Remedy(
    id="training-mode",
    title="dropout in a step that trains nothing",
    short="model.eval()",
    rest="unless the randomness is wanted: dropout changes results, and keeps fused layers from being used",
    verify="no dropout in the step",
)
LONG_FILTER: Final = Remedy(
    id="long-filter",
    title="direct convolutions with long filters",
    short="convolve by torch.fft.rfft and irfft",
    rest="or in blocks (overlap-add): the work then grows with the logarithm of the filter's length",
)
_PRODUCTS: Final = ("aten::mm", "aten::bmm")
_DECOMPOSITIONS: Final = tuple(
    f"aten::{name}"
    for name in (
        "_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_qr", "linalg_lu_factor_ex", "linalg_cholesky_ex",
        "linalg_inv_ex", "_linalg_eigvals", "linalg_lstsq", "linalg_pinv", "linalg_matrix_exp",
    )
)  # fmt: skip
_DROPOUT: Final = ("aten::native_dropout", "aten::bernoulli_", "aten::bernoulli", "aten::feature_dropout")
_LONG: Final = 128  # taps of a filter: below, a direct convolution is as fast
_HALF: Final = 0.5


def order(facts: Facts) -> Iterable[Draft]:
    """Two products of which the second alone reads the first: multiplied the other way they do less."""
    of = facts.of
    pairs = list(_chained(of))
    calls = [call for pair, _ in pairs for call in pair]
    gain_s = facts.spared_alone((call, 1 - part) for pair, part in pairs for call in pair)
    text = f"{count_of(len(pairs), 'pair')} of products, of which the other order needs a part of the work"
    if pairs:
        first = of.op(pairs[0][0][0]).outputs[0]
        text = f"{text}: a result of {Quantity(first.nbytes, 'B')} between the two"
    yield from facts.draft(ORDER, calls, text, gain_s=gain_s)


def _chained(of: Evidence) -> Iterator[tuple[tuple[int, int], float]]:
    """Pairs of products whose other order needs at most half of the work, and which part that is."""
    for first in of.named(*_PRODUCTS).tolist():
        written = of.writes[first]
        readers = of.readers[written[0]] if len(written) == 1 else []
        if len(readers) != 1 or of.op(readers[0]).name not in _PRODUCTS:
            continue
        second, made = of.op(readers[0]), of.op(first)
        reads = of.reads[readers[0]]
        if len(reads) != len(second.inputs) or len(made.inputs) != 2 or len(second.inputs) != 2:
            continue
        left = reads[0] == written[0]
        (*batch, rows, inner), (*_, columns) = made.inputs[0].shape, made.inputs[1].shape
        (*others, r, s), (*_, t) = second.inputs[0].shape, second.inputs[1].shape
        if prod(batch) != prod(others) or sorted((rows, columns)) != sorted((r, s) if left else (s, t)):
            continue
        # of the chain r x inner x s x t, or r x s x inner x t
        now, other = (r * inner * s + r * s * t, inner * s * t + r * inner * t)
        if not left:
            now, other = s * inner * t + r * s * t, r * s * inner + r * inner * t
        if other <= _HALF * now:
            yield (first, readers[0]), other / now


def real_fft(facts: Facts) -> Iterable[Draft]:
    """Transforms of real numbers that are computed as those of complex ones."""
    of = facts.of
    whole = [
        call for call in of.named("aten::_fft_r2c").tolist() if dict(of.op(call).attributes).get("onesided") is False
    ]
    complex_ones = of.named("aten::_fft_c2c")
    casts = (
        [call for call in np.flatnonzero(of.works).tolist() if _makes_complex(of, call)] if len(complex_ones) else []
    )
    made = of.writes.of(np.array(casts, dtype=np.int64)) if casts else np.empty(0, dtype=np.int64)
    of_real = [call for call in complex_ones.tolist() if set(of.reads[call]) & set(made.tolist())]
    if not whole and not of_real:
        return
    calls = sorted({*whole, *complex_ones.tolist(), *casts})
    text = f"{count_of(len(whole) + len(of_real), 'transform')} of real numbers in {len(calls)} ops on complex ones"
    yield from facts.draft(REAL, calls, text, gain_s=facts.spared(calls, _HALF))


def _makes_complex(of: Evidence, call: int) -> bool:
    op = of.op(call)
    to = bool(op.outputs) and op.outputs[0].dtype.startswith("complex")
    return to and bool(op.inputs) and not any(each.dtype.startswith("complex") for each in op.inputs)


def decompositions(facts: Facts) -> Iterable[Draft]:
    """Decompositions of weights or gradients in a step that trains."""
    of = facts.of
    kept = (StorageKind.PARAMETER, StorageKind.GRADIENT, StorageKind.OPTIMIZER_STATE)
    calls = [
        call for call in of.named(*_DECOMPOSITIONS).tolist() if any(of.kinds[each] in kept for each in of.reads[call])
    ]
    if of.trains and calls:
        text = f"{count_of(len(calls), 'decomposition')} ({of.names(np.array(calls))}) of weights or gradients"
        yield from facts.draft(DECOMPOSED, calls, text, gain_s=facts.spared(calls, 0.9))


def training_mode(facts: Facts) -> Iterable[Draft]:
    """Dropout without a backward pass."""
    of = facts.of
    calls = of.named(*_DROPOUT)
    if of.trains or not len(calls) or not (of.direction == Direction.FORWARD).any():
        return
    drawn = of.writes.of(calls)
    scaled: Int64 = np.flatnonzero(of.works & of.reads.by(drawn) & ~of.products)
    one_each = [call for call in scaled.tolist() if len(of.op(call).inputs) <= 2]
    text = f"{count_of(len(calls), 'dropout')} and no backward pass: the model is in training mode"
    yield from facts.draft(TRAINING_MODE, [*calls, *one_each], text)


def long_filters(facts: Facts) -> Iterable[Draft]:
    """Convolutions of one dimension whose filters are so long that Fourier transforms do less."""
    of = facts.of
    calls = []
    for call in of.named("aten::convolution", "aten::convolution_backward", "aten::mkldnn_convolution").tolist():
        filters = [each for each in of.op(call).inputs if len(each.shape) in (3, 4)]
        calls += [call] * (len(filters) > 1 and max(filters[-1].shape[2:]) >= _LONG)
    text = f"{count_of(len(calls), 'convolution')} with filters of {_LONG} taps or more"
    yield from facts.draft(LONG_FILTER, calls, text, gain_s=facts.spared(calls, 0.7), low=0.3)


RULES: Final = (order, real_fft, decompositions, training_mode, long_filters)
