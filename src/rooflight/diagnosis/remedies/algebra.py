"""Algebra: a larger computation than its result needs, though each op may run at its bound."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from math import prod
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.diagnosis.evidence import Evidence
from rooflight.records.quantity import Quantity, count_of, percent
from rooflight.records.record import Direction, StorageKind
from rooflight.records.session import KEPT, Int64

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
SORTED: Final = Remedy(
    id="sorted",
    title="all is sorted, and a few values are read",
    short="amax, topk or kthvalue in place of sort",
    rest="one value or k of them take one pass",
    verify="no sort in the step",
)
PICKED: Final = Remedy(
    id="picked-and-put-back",
    title="elements are picked by a mask and put back",
    short="torch.where(mask, f(x), x)",
    rest="all elements in one pass, without nonzero, index and index_put",
    verify="no nonzero in the step",
)
PAIRS: Final = Remedy(
    id="all-pairs",
    title="all pairs are formed, only to be reduced",
    short="sort and searchsorted, cdist or a product",
    rest="a count or rank comes from sorted values, a sum over pairs from a product, a distance from cdist: none needs "
    "the large tensor; or every N steps",
    verify="the large tensor is gone, its result is the same",
)
BACKWARDS: Final = Remedy(
    id="many-backwards",
    title="the backward pass runs several times over one forward pass",
    short="one backward pass, for the sum of losses",
    rest="a Hessian-vector product (hvp, jvp of grad) in place of a Hessian; vmap or is_grads_batched for a Jacobian",
    verify="as many ops of a kind in the backward pass as in the forward pass",
)
LONG_FILTER: Final = Remedy(
    id="long-filter",
    title="direct convolutions with long filters",
    short="convolve by torch.fft.rfft and irfft",
    rest="in blocks (overlap-add) the work grows with the logarithm of the filter's length; a filter that is an outer "
    "product (a Gaussian) is separable: one-dimensional passes over rows, then columns",
)
_PRODUCTS: Final = ("aten::mm", "aten::bmm", "aten::mv")
_DECOMPOSITIONS: Final = tuple(
    f"aten::{name}"
    for name in (
        "_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_qr", "linalg_lu_factor_ex", "linalg_cholesky_ex",
        "linalg_inv_ex", "_linalg_eigvals", "linalg_lstsq", "linalg_pinv", "linalg_matrix_exp",
    )
)  # fmt: skip
_GRADIENT_OF: Final = ("_backward", "_backward_data")
_NAMED_OTHERWISE: Final = {"aten::threshold": ("aten::relu", "aten::relu_"), "aten::sigmoid": ("aten::sigmoid_",)}
DROPOUT: Final = ("aten::native_dropout", "aten::bernoulli_", "aten::bernoulli", "aten::feature_dropout")
_LONG: Final = 128  # taps of a filter: below, a direct convolution is as fast
_FEW: Final = 4  # channels: for many a transform has as many products to make
_HALF: Final = 0.5
_MANY_PAIRS: Final = 16  # times the elements of the larger operand
_LARGE: Final = 1 << 16  # elements
_FEW_READ: Final = 0.125
_AGAIN: Final = 2.5  # backward passes over one forward pass


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
    forward = of.direction == Direction.FORWARD
    products = dict.fromkeys(of.named(*_PRODUCTS).tolist())
    for first in products:
        written = of.writes[first]
        # the backward pass reads it again, and follows the order
        readers = [each for each in of.readers[written[0]] if forward[each]] if len(written) == 1 else []
        if len(readers) != 1 or readers[0] not in products:
            continue
        second, made = of.op(readers[0]), of.op(first)
        reads = of.reads[readers[0]]
        if len(reads) != len(second.inputs) or len(made.inputs) != 2 or len(second.inputs) != 2:
            continue
        left = reads[0] == written[0]
        (*batch, rows, inner), (*_, columns) = made.inputs[0].shape, _matrix(made.inputs[1].shape)
        (*others, r, s), (*_, t) = second.inputs[0].shape, _matrix(second.inputs[1].shape)
        if left and not others and r == prod(batch) * rows:  # all rows of a batch, by one matrix
            others, r = batch, rows
        if prod(batch) != prod(others) or sorted((rows, columns)) != sorted((r, s) if left else (s, t)):
            continue
        # of the chain r x inner x s x t, or r x s x inner x t
        now, other = (r * inner * s + r * s * t, inner * s * t + r * inner * t)
        if not left:
            now, other = s * inner * t + r * s * t, r * s * inner + r * inner * t
        if other <= _HALF * now:
            yield (first, readers[0]), other / now


def _matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape, 1) if len(shape) == 1 else shape


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
    calls = of.named(*DROPOUT)
    if of.trains or not len(calls) or not (of.direction == Direction.FORWARD).any():
        return
    drawn = of.writes.of(calls)
    scaled: Int64 = np.flatnonzero(of.works & of.reads.by(drawn) & ~of.products)
    one_each = [call for call in scaled.tolist() if len(of.op(call).inputs) <= 2]
    text = f"{count_of(len(calls), 'dropout')} and no backward pass: the model is in training mode"
    yield from facts.draft(TRAINING_MODE, [*calls, *one_each], text)


def long_filters(facts: Facts) -> Iterable[Draft]:
    """Convolutions whose filters are so large that Fourier transforms do less, of few channels."""
    of = facts.of
    calls = []
    for call in of.named("aten::convolution", "aten::convolution_backward", "aten::mkldnn_convolution").tolist():
        filters = [each for each in of.op(call).inputs if len(each.shape) >= 3]
        calls += [call] * (
            len(filters) > 1 and _FEW * prod(filters[-1].shape[2:]) >= _LONG * max(_FEW, filters[-1].shape[1])
        )
    text = f"{count_of(len(calls), 'convolution')} with filters of {_LONG} taps or more{of.places(calls)}"
    yield from facts.draft(LONG_FILTER, calls, text, gain_s=facts.spared(calls, 0.7), low=0.3)


def sorted_for_few(facts: Facts) -> Iterable[Draft]:
    """Sorts of whose results a small part is read."""
    of = facts.of
    calls = [call for call in of.named("aten::sort", "aten::argsort").tolist() if of.share_read(call) < _FEW_READ]
    text = f"{count_of(len(calls), 'sort')}, of {percent(_FEW_READ)} of the results at most are read{of.places(calls)}"
    yield from facts.draft(SORTED, calls, text, gain_s=facts.spared(calls, 0.9))


def picked(facts: Facts) -> Iterable[Draft]:
    """Elements picked by a mask, and written back by the same."""
    of = facts.of
    masks = of.named("aten::nonzero")
    put = of.named("aten::index_put_", "aten::index_put", "aten::masked_scatter_", "aten::masked_scatter")
    picking = of.named("aten::index", "aten::masked_select")
    by = set(of.writes.of(masks).tolist() if len(masks) else ())
    for call in picking.tolist():
        pairs = zip(of.op(call).inputs, of.reads[call], strict=False)
        by.update(storage for tensor, storage in pairs if tensor.dtype == "bool")
    put, picking = (each[of.reads.by(by)[each]] if by else each[:0] for each in (put, picking))
    if not len(put) or not len(picking):
        return
    calls = np.union1d(np.union1d(masks, put), picking)
    text = f"{count_of(len(put), 'time')} elements are picked, and put back to where they came from{of.places(calls)}"
    yield from facts.draft(PICKED, calls, text, gain_s=facts.spared(calls, 0.7), low=0.3)


def all_pairs(facts: Facts) -> Iterable[Draft]:
    """Tensors of all pairs of two smaller ones that are computed with element by element, and then only reduced."""
    of = facts.of
    if not facts.values.known:
        return
    sizes = of.session.storage_bytes
    pairs: set[int] = set()  # storages
    calls: list[int] = []
    names: list[str] = []
    for call in np.flatnonzero(of.works & (of.direction == Direction.FORWARD)).tolist():
        op, reads = of.op(call), of.reads[call]
        results = max((tensor.numel for tensor in op.outputs), default=0)
        within = bool(pairs.intersection(reads))
        given = max((tensor.distinct for tensor in op.inputs), default=0)
        if results >= max(_LARGE, _MANY_PAIRS * given) and len(op.inputs) > 1 and not of.products[call]:
            names.append(op.name)
            pairs.update(of.writes[call])
        elif not within:
            continue
        elif of.products[call]:  # a kernel of points, which a product reads
            return
        elif results * _MANY_PAIRS > given:
            pairs.update(each for each in of.writes[call] if sizes[each])
        calls.append(call)
    text = f"{count_of(len(names), 'op')} on all pairs, {count_of(len(calls) - len(names), 'op')} on their results"
    lifetimes = of.session.lifetimes
    if names and lifetimes is not None and not any(lifetimes.freed[each] == KEPT for each in pairs):
        text = f"{text}: {Quantity(facts.spared(calls), 's')}{of.places(calls)}"
        yield from facts.draft(PAIRS, calls, text, gain_s=facts.spared(calls, 0.9))


def many_backwards(facts: Facts) -> Iterable[Draft]:
    """Gradients of one forward op that are computed again and again: for one loss after the other, or row by row."""
    of = facts.of
    backward = of.direction == Direction.BACKWARD
    names = [op.name for op in of.session.signatures]
    count = np.bincount(of.signature, minlength=len(names))
    by_name: dict[str, int] = {}
    for name, calls in zip(names, count.tolist(), strict=True):
        if calls:
            by_name[name] = by_name.get(name, 0) + calls
    ratios = {
        name: by_name[name] / by_name[forward]
        for name in by_name
        if name.endswith(_GRADIENT_OF) and (forward := _forward_of(name, by_name)) is not None
    }
    repeated = [name for name, ratio in ratios.items() if ratio >= _AGAIN]
    if not repeated or not backward.any():
        return
    ratio = float(np.median([ratios[name] for name in repeated]))
    calls = np.flatnonzero(backward & of.works)
    text = (
        f"{', '.join(name.removeprefix('aten::') for name in repeated[:2])} ran {ratio:.0f} times for each forward op"
    )
    gain_s = facts.spared(calls, 1 - 1 / ratio)
    yield from facts.draft(BACKWARDS, calls, f"{text}: {Quantity(gain_s, 's')}{of.places(calls)}", gain_s=gain_s)


def _forward_of(name: str, known: Collection[str]) -> str | None:
    """The op whose gradient an op of such a name computes."""
    plain = name.removesuffix("_data").removesuffix("_backward").removesuffix("_dense")
    return next((each for each in (plain, f"{plain}_forward", *_NAMED_OTHERWISE.get(plain, ())) if each in known), None)


RULES: Final = (
    order, real_fft, all_pairs, many_backwards, sorted_for_few, picked, decompositions, training_mode,
    long_filters,
)  # fmt: skip
