"""Reductions, scans, sorting and losses.

Reductions and scans.

Conventions, FLOPs per input element: sum, product, extremum, mean and scans 1 (dividing a mean is lost in
it); norms 2 (raise, add); variance and standard deviation 4 (mean 1, subtract, square, add); log-sum-exp 4 (maximum,
subtract, exponential, add). Of complex numbers a product is 6 per element, any other reduction twice that of real ones.
What may stop at the first element (``equal``, ``any``, ``all``) is counted as if it did.

Sorting, searching and counting.

Conventions: sorting and selecting are bytes only: how many comparisons they take depends on the algorithm (radix
sort has none). Searching is one comparison per halving; of the sorted sequence no more is read than it holds.
Counting is 1 FLOP per element.

Losses and their gradients.

Conventions: cross-entropy is the chain of log-softmax (5 FLOPs per logit) and negative log-likelihood, which reads
one logit per row; its backward writes the full gradient, of which all but one element a row is zero. FLOPs per
element: squared error 3, absolute error 3, smooth and Huber 5, binary cross-entropy 6, each with the adding up.
"""

from __future__ import annotations

from rooflight.costs.cost import Needs, OpCost
from rooflight.costs.registry import Formula
from rooflight.costs.rules import Family, copies, first_input, further_bytes, largest, moving, per_input, picked_bytes
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec

reduction_ops = Family("reduction", fusable=True)

STOPS_NOTE = "counted as if the first elements differ"
EARLY_NOTE = "counted as if the first elements decide"


def reducing(flops: int, complex_factor: int = 2) -> Formula:
    """A formula: so many FLOPs for each element of the first input, ``complex_factor`` times as many if complex."""
    return moving(
        lambda op: flops * (complex_factor if op.inputs[0].dtype.startswith("complex") else 1) * op.inputs[0].numel
    )


REDUCTIONS: dict[int, str] = {
    1: "sum nansum mean nanmean amax amin aminmax _aminmax max min argmax argmin count_nonzero hash_tensor",
    2: "norm linalg_vector_norm native_norm frobenius_norm norm_except_dim dist linalg__powsum linalg_vecdot",
    4: "var std var_mean std_mean logsumexp special_logsumexp",
}

SCANS: dict[int, str] = {1: "cumsum cummax cummin _cummax_helper _cummin_helper", 4: "logcumsumexp _logcumsumexp"}

for _flops, _ops in REDUCTIONS.items():
    reduction_ops(_ops, needs=Needs.SHARE)(reducing(_flops))
for _flops, _ops in SCANS.items():
    reduction_ops(_ops, needs=Needs.SCAN)(reducing(_flops))
reduction_ops("prod", needs=Needs.SHARE)(reducing(1, complex_factor=6))
reduction_ops("cumprod", needs=Needs.SCAN)(reducing(1, complex_factor=6))
# each gradient where its value was picked, zeros elsewhere
reduction_ops.rows({copies: "value_selecting_reduction_backward cummaxmin_backward"})


@reduction_ops("trace")
def trace(op: OpSignature) -> OpCost:
    """x [m, n] to the sum of its diagonal; nothing else is read."""
    x = op.inputs[0]
    factor = 2 if x.dtype.startswith("complex") else 1
    diagonal = min(x.shape)
    read = picked_bytes(x, diagonal)
    return OpCost(vector_flops=factor * diagonal, bytes_read=read, bytes_written=op.output_bytes)


@reduction_ops("any all _is_all_true _is_any_true")
def decided_early(op: OpSignature) -> OpCost:
    """x to whether any or all of it is true, at the latest known after all elements, perhaps after the first."""
    x, answers = op.inputs[0], sum(tensor.numel for tensor in op.outputs)
    looks = min(x.numel, answers)
    return OpCost(vector_flops=looks, bytes_read=picked_bytes(x, looks), bytes_written=op.output_bytes, note=EARLY_NOTE)


@reduction_ops("equal", fusable=False)
def equal(op: OpSignature) -> OpCost:
    """Two tensors to one answer: no for other sizes, and else at the latest where two elements differ, perhaps the
    first two; two names of the same elements need no look. CPUs stop there, GPUs compare all (``eq``, then ``all``).
    """
    a, b = op.inputs[:2]
    same = a == b and a.storage != UNSHARED
    if same or a.shape != b.shape or not a.numel:
        return OpCost()
    return OpCost(vector_flops=1, bytes_read=a.item_bytes + b.item_bytes, note=STOPS_NOTE)


sorting_ops = Family("sorting", fusable=True)

sorting_ops.rows(
    {
        copies: "sort argsort msort topk kthvalue median nanmedian mode quantile nanquantile isin",
        per_input(1): "bincount histc histogram _histogramdd_from_bin_cts _histogramdd_bin_edges "
        "_histogramdd_from_bin_tensors segment_reduce _segment_reduce_backward one_hot",
    }
)
# how many distinct elements there are is data
sorting_ops("_unique _unique2 unique_dim unique_consecutive unique_dim_consecutive", fusable=False)(copies)


def _search(op: OpSignature, sequence: TensorSpec, wanted: TensorSpec | None) -> OpCost:
    length = sequence.shape[-1] if sequence.shape else 1
    halvings = length.bit_length()
    looked_up = wanted.numel if wanted else 1
    return OpCost(
        vector_flops=looked_up * halvings,
        bytes_read=(wanted.nbytes if wanted else 0) + picked_bytes(sequence, looked_up * halvings),
        bytes_written=op.output_bytes,
    )


# sorted sequences [..., n] and values [..., v], log2(n) comparisons per value; values [...] and boundaries [n]
sorting_ops.rows(
    {
        lambda op: _search(op, op.inputs[0], op.input("self") or (op.inputs[1] if len(op.inputs) > 1 else None)): (
            "searchsorted"
        ),
        lambda op: _search(op, op.input("boundaries") or op.inputs[-1], op.input("self")): "bucketize",
    }
)


@sorting_ops("allclose")
def allclose(op: OpSignature) -> OpCost:
    """|a - b| <= atol + rtol |b|, about 4 per element: no at the latest where it fails, perhaps for the first two."""
    first = [picked_bytes(tensor, 1) for tensor in op.inputs[:2]]
    return OpCost(vector_flops=4 if all(first) else 0, bytes_read=sum(first) if all(first) else 0, note=STOPS_NOTE)


loss_ops = Family("loss", fusable=True)

LENGTHS_NOTE = "sequences taken to be as long as their tensors"

loss_ops.rows(
    {
        per_input(3): "mse_loss mse_loss_backward l1_loss soft_margin_loss multi_margin_loss hinge_embedding_loss",
        per_input(4): "multi_margin_loss_backward multilabel_margin_loss_forward multilabel_margin_loss "
        "multilabel_margin_loss_backward kl_div soft_margin_loss_backward",
        per_input(5): "smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward "
        "binary_cross_entropy_backward",
        per_input(6): "binary_cross_entropy",
        per_input(7): "binary_cross_entropy_with_logits",
        first_input(5): "cross_entropy_loss",  # logits [n, V], target [n] to the loss in one go
        # the loss's gradient and target [n] to a gradient [n, V], zero but for one element a row
        moving(lambda op: (op.input("target") or op.inputs[-1]).numel, "self"): "nll_loss_backward nll_loss2d_backward",
        # the beta recursion over the states and the gradient of every log-probability
        moving(lambda op: 7 * largest(op.named("log_alpha")) + 3 * largest(op.outputs)): "_ctc_loss_backward",
    }
)


@loss_ops("nll_loss_forward nll_loss2d_forward nll_loss nll_loss2d nll_loss_nd")
def nll_loss(op: OpSignature) -> OpCost:
    """log-probabilities [n, V], target [n] to the loss: one element a row, weighed and added."""
    logits, target = op.inputs[:2]
    rows = target.numel
    weight = op.input("weight")
    return OpCost(
        vector_flops=(2 if weight else 1) * rows,
        bytes_read=target.nbytes + picked_bytes(logits, rows) + (picked_bytes(weight, rows) if weight else 0),
        bytes_written=op.output_bytes,
    )


@loss_ops("_ctc_loss _cudnn_ctc_loss ctc_loss miopen_ctc_loss")
def ctc_loss(op: OpSignature) -> OpCost:
    """log-probabilities [T, B, V], targets: about 7 per step and state of the alignment (alpha, 2 L + 1 states).

    Read are the blank's log-probability and those of a target's L labels, each perhaps of a class of its own.
    """
    x = op.inputs[0]
    states = max((tensor.shape[-1] for tensor in op.outputs if len(tensor.shape) == 3), default=2 * x.shape[-1])
    classes = min(x.shape[-1], (states + 1) // 2)
    return OpCost(
        vector_flops=7 * largest(op.outputs),
        bytes_read=picked_bytes(x, x.numel // max(1, x.shape[-1]) * classes) + further_bytes(op),
        bytes_written=op.output_bytes,
        upper=True,
        note=LENGTHS_NOTE,
    )
