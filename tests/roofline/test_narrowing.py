"""Of a result only a part is read: the fused and the program bound count what that part takes, and nothing below it."""

import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_function import Calls
from torch import Tensor, nn
from torch.nn import functional

import rooflight as rl
from rooflight.records.session import STOOD
from rooflight.roofline.analysis import Analysis

H100 = "H100-SXM5-80GB"


def analyzed(function: Callable[..., Any], *given: Any, grad: bool = False) -> Analysis:
    """``function`` of modules and tensors, as a module calls it."""
    modules = [each for each in given if isinstance(each, nn.Module)]
    model = Calls(function, *modules)
    with torch.set_grad_enabled(grad), rl.record(model, memory=True) as recording:
        kept = model(*(each for each in given if not isinstance(each, nn.Module)))
    del kept
    return rl.analyze(recording.session, H100)


def moved(analysis: Analysis) -> tuple[int, int]:
    """Compulsory bytes: read and written. The regions read and write as much or more."""
    fusion = analysis.fusion
    assert fusion.bytes_in <= sum(region.bytes_read for region in fusion.regions)
    return fusion.bytes_in, fusion.bytes_out


def work(analysis: Analysis, name: str) -> float:
    """Share of the FLOPs of the one op of a name."""
    signatures = analysis.session.signatures
    (record,) = [
        number for number, index in enumerate(analysis.session.columns.signature) if signatures[index].name == name
    ]
    return analysis.fusion.work.get(record, 1.0)


X = torch.randn(8, 4, 16)  # 2048 bytes
ROW = 16 * 4


# -- hand arithmetic ---------------------------------------------------------------------------------------------------


def layers(layer: nn.Module, then: Callable[[Any], Any], x: Tensor = X) -> tuple[Any, ...]:
    return (lambda layer, x: then(layer(x))), layer, x


def half_zero(x: Tensor) -> Tensor:
    y = x * 2
    y[:4] = 0
    return y


NORM, LINEAR, QKV = nn.LayerNorm(16), nn.Linear(16, 24), nn.Linear(16, 48)
CONV, STRIDED = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, stride=2, padding=1)
UP = nn.ConvTranspose2d(4, 3, 3, stride=2)  # [2, 4, 6, 6] to [2, 3, 13, 13]
IMAGES, FILTERS = torch.randn(4, 3, 8, 8), 8 * 112  # 768 bytes an image; a filter 108, a bias 4
BIAS, WEIGHT, Y = torch.randn(16), torch.randn(16, 24), torch.randn(8, 4, 16)
ROWS = torch.randn(32, 16)
A, B = torch.randn(8, 5, 16), torch.randn(8, 16, 3)
LSTM = nn.LSTM(16, 32, 2, batch_first=True)
# matrices: 128 (16 + 32) = 6144 of each way of layer 0, 128 (64 + 32) = 12288 of layer 1; of its way back, a step
BOTH_WAYS = nn.LSTM(16, 32, 2, batch_first=True, bidirectional=True)
LOGITS, LABELS = torch.randn(64, 100), torch.randint(100, (64,))

# a program with its arguments; bytes read and written, None for any; shares of the FLOPs of ops that are narrowed
CASES: dict[str, tuple[tuple[Any, ...], int | None, int | None, dict[str, float]]] = {
    "a whole norm": (layers(NORM, lambda y: y), 2048 + 2 * ROW, 2048, {}),
    # 8 of 32 rows: 512 bytes, weight and bias
    "rows of a norm": (layers(NORM, lambda y: y[:, 0]), 10 * ROW, 8 * ROW, {"native_layer_norm": 0.25}),
    "copied rows": (layers(NORM, lambda y: y[:, 0].clone()), 10 * ROW, 8 * ROW, {"native_layer_norm": 0.25}),
    "columns of a norm": (layers(NORM, lambda y: y[..., :2] * 2), 2048 + 2 * 8, 32 * 2 * 4, {}),
    "columns of a softmax": ((lambda x: x.softmax(-1)[..., :2] * 2, X), 2048, 32 * 2 * 4, {}),
    "rows of a softmax": ((lambda x: x.softmax(1)[:, :1] * 2, X), 2048, 512, {}),
    "batches of a softmax": ((lambda x: x.softmax(1)[:2] * 2, X), 512, 512, {}),
    "a norm without a second storage": (
        (lambda x: functional.rms_norm(x, (16,))[:, 0], X), 512, 512, {"_fused_rms_norm": 0.25}
    ),
    "a slice": ((lambda x: (x + 1)[:2].clone(), X), 512, 512, {}),
    "a column": ((lambda x: (x + 1)[..., 3], X), 128, 128, {}),
    "columns and a bias": ((lambda x, b: (x * b)[..., :4].clone(), X, BIAS), 512 + 16, 512, {}),
    "rows and a bias": ((lambda x, b: (x * b)[:2].clone(), X, BIAS), 512 + ROW, 512, {}),
    "expanded": ((lambda x: x.expand(3, 8, 4, 16).clone()[:, ::2], X), 1024, 3 * 1024, {}),  # half of x, three times
    "turned": ((lambda x: (x.transpose(0, 1).contiguous() + 1)[0].clone(), X), 512, 512, {}),
    "in place": ((lambda x: (x * 2).add_(1)[:2].clone(), X), 512, 512, {}),
    "two readers": ((lambda x: ((x + 1)[:4] * 2, (x - 1).exp()[2:5]), X), 5 * 256, 7 * 256, {}),
    "all slices": ((lambda x: [part * 2 for part in (x + 1).split(4)], X), 2048, 2048, {"add": 1}),
    "overlapping slices": ((lambda x: [part * 2 for part in (x + 1).unfold(0, 3, 2)[:2]], X), 5 * 256, 6 * 256, {}),
    "two views that are returned": ((lambda x: (x + 1).tensor_split((1, 4))[:2], X), 1024, 1024, {}),
    "queries, keys and values": (layers(QKV, lambda y: sum(p + 1 for p in y.chunk(3, -1))), None, None, {"addmm": 1}),
    "queries and keys": (
        layers(QKV, lambda y: sum(p + 1 for p in y.chunk(3, -1)[:2])),
        2048 + 2 * (48 * ROW + 48 * 4) // 3, 2048, {"addmm": 2 / 3},
    ),
    # 4 of 32 rows: 256 bytes of x, all of the weight
    "rows of a product": ((lambda x, w: (x @ w)[:4].relu(), ROWS, WEIGHT), 256 + 1536, 4 * 24 * 4, {"mm": 4 / 32}),
    "columns of a product": ((lambda x, w: (x @ w)[:, :6].relu(), ROWS, WEIGHT), 2048 + 384, 32 * 6 * 4, {"mm": 0.25}),
    "batches of a product": (
        (lambda a, b: torch.bmm(a, b)[2:4].clone(), A, B), 2 * 5 * ROW + 2 * 3 * ROW, 120, {"bmm": 0.25}
    ),
    "a token of a linear layer": (layers(LINEAR, lambda y: y[:, 0].relu()), 512 + 24 * ROW + 24 * 4, 8 * 24 * 4, {}),
    "images": (layers(CONV, lambda y: y[:1].relu(), IMAGES), 768 + FILTERS, None, {"convolution": 0.25}),
    "channels": (layers(CONV, lambda y: y[:, 4:].relu(), IMAGES), 4 * 768 + FILTERS // 2, None, {"convolution": 0.5}),
    # two rows of results are under windows of three rows of x, 8 x 4 bytes each of 3 channels
    "rows of images": (
        layers(CONV, lambda y: y[:, :, :2].relu(), IMAGES), 4 * 3 * 3 * 32 + FILTERS, None, {"convolution": 0.25}
    ),
    # 4 x 4 results; the last row lies on rows 5 to 7
    "a strided row": (layers(STRIDED, lambda y: y[:, :, 3].relu(), IMAGES), 4 * 3 * 3 * 32 + FILTERS, None, {}),
    # how many products end in the edge that is not read is not known
    "all but an edge of it": (
        layers(UP, lambda y: y[:, :, :-1].relu(), torch.randn(2, 4, 6, 6)), None, None, {"convolution": 0}
    ),
    "one of several results": ((lambda x: torch.unbind_copy(x)[3] * 2, X), 256, 256, {}),
    "of what is joined, one": ((lambda x, y: torch.cat([x, y], 1)[:, :4] * 2, X, Y), 2048, 2048, {}),
    "of what is joined, parts": ((lambda x, y: torch.cat([x, y], 1)[:, 3:5] * 2, X, Y), 1024, 1024, {}),
    "of what is stacked, one": ((lambda x, y: torch.stack([x, y])[1] * 2, X, Y), 2048, 2048, {}),
    "the last step": (layers(LSTM, lambda y: y[0][:, -1].clone()), None, None, {"lstm": 1}),
    "the first step": (layers(LSTM, lambda y: y[0][:, 0].clone()), None, None, {"lstm": 0.25}),
    "the last state": (layers(LSTM, lambda y: y[1][0][-1].clone()), None, None, {"lstm": 1}),
    "the last step both ways": (
        layers(BOTH_WAYS, lambda y: y[0][:, -1].clone()), None, None,
        {"lstm": (2 * 6144 + 12288 + 12288 / 4) / (2 * 6144 + 2 * 12288)},
    ),
    "cross-entropy": ((functional.cross_entropy, LOGITS, LABELS), 64 * 100 * 4 + 64 * 8, 4, {}),
    "cross-entropy in half": (
        (lambda x, y: functional.cross_entropy(x.float().view(-1, 100), y), LOGITS.half(), LABELS),
        64 * 100 * 2 + 64 * 8, None, {},
    ),
    "picked of a log-softmax": (
        (lambda x, y: x.log_softmax(-1).gather(1, y[:, None]), LOGITS, LABELS), 64 * 100 * 4 + 64 * 8, None, {}
    ),
    # without a norm before it, only what is picked
    "picked": ((lambda x, y: x.exp().gather(1, y[:, None]), LOGITS, LABELS), 64 * 4 + 64 * 8, None, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_part_takes(name: str) -> None:
    program, read, written, shares = CASES[name]
    analysis = analyzed(*program)
    found_read, found_written = moved(analysis)
    assert read in (None, found_read)
    assert written in (None, found_written)
    assert {op: work(analysis, f"aten::{op}") for op in shares} == pytest.approx(shares)
    # the op bound is of ops as called
    assert analysis.program.program_bound_s <= analysis.program.fused_bound_s <= analysis.totals.op_bound_s * 1.000001


def test_what_is_written_over_is_not_needed():
    analysis = analyzed(half_zero, X)
    assert moved(analysis)[1] == 2048
    assert 1024 <= moved(analysis)[0] <= 1024 + 4  # the zero may be a tensor


class Result:
    """What a model may return that is neither list, tuple nor dict."""

    def __init__(self, y: Tensor) -> None:
        self.y = y


@pytest.mark.parametrize("wrap", [lambda y: y, lambda y: [{"a": (y,)}], lambda y: y.view(-1), Result])
def test_what_is_returned_too_is_needed_whole(wrap):
    def both(x: Tensor) -> Any:
        y = x + 1
        return wrap(y), y[:2] * 3

    assert moved(analyzed(both, X))[0] == 2048


def test_a_model_that_keeps_what_it_computed_needs_it_whole():
    class Keeps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.last = x + 1
            return self.last[:2].exp()

    model = Keeps()
    with torch.no_grad(), rl.record(model, memory=True) as recording:
        model(X)
    assert moved(rl.analyze(recording.session, H100))[0] == 2048


def test_backward_reads_what_was_saved_for_it():
    x = X.clone().requires_grad_()
    analysis = analyzed(lambda x: x.exp()[:2].sum().backward(), x, grad=True)
    assert work(analysis, "aten::exp") == 1.0


def test_attention_of_one_query_reads_the_keys_that_it_sees():
    q = torch.randn(2, 4, 8, 16)  # 4096 bytes; one query of each head 512

    def last(causal: bool, query: int) -> tuple[int, float]:
        attend = partial(functional.scaled_dot_product_attention, is_causal=causal)
        analysis = analyzed(lambda q, k, v: attend(q, k, v)[:, :, query].clone(), q, q.clone(), q.clone())
        return moved(analysis)[0], work(analysis, "aten::scaled_dot_product_attention")

    assert last(False, 3) == (512 + 2 * 4096, 1 / 8)
    assert last(True, 7)[0] == 512 + 2 * 4096
    assert last(True, 3)[0] == 512 + 2 * 2048
    assert last(True, 0)[0] == 3 * 512
    # query 0 sees 1 of 36 pairs
    assert last(True, 0)[1] <= 1 / 36


def test_a_last_state_takes_no_layer_above_it():
    net = nn.LSTM(16, 32, 2, batch_first=True)
    assert work(analyzed(lambda f, x: f(x)[1][0][0].clone(), net, X), "aten::lstm") <= (16 + 32) / (16 + 32 + 32 + 32)


def test_masking_in_place_keeps_what_is_not_masked():
    mask = torch.zeros(8, 4, 16, dtype=torch.bool)
    analysis = analyzed(lambda x, mask: (x * 2).masked_fill_(mask, 0.0)[:2].clone(), X, mask)
    assert moved(analysis)[0] >= 512


def test_a_function_without_a_module_is_narrowed_where_it_computes_on():
    with torch.no_grad(), rl.record(memory=True) as recording:
        kept = (X + 1)[:2].clone()
    assert moved(rl.analyze(recording.session, H100)) == (512, 512)
    assert kept.shape == (2, 4, 16)
    with torch.no_grad(), rl.record(memory=True) as recording:
        y = X + 1
        z = y[:2].clone()
    assert moved(rl.analyze(recording.session, H100))[0] == 2048  # y is still there
    del y, z


def test_without_lifetimes_everything_counts():
    with torch.no_grad(), rl.record() as recording:
        (X + 1)[:2].clone()
    assert moved(rl.analyze(recording.session, H100))[0] == 2048


def test_an_op_without_a_formula_reads_everything():
    with torch.library._scoped_library("narrowing", "DEF") as library:
        library.define("odd(Tensor x) -> Tensor")
        library.impl("odd", lambda x: x.clone(), "CPU")
        analysis = analyzed(lambda x: torch.ops.narrowing.odd((x + 1)[:2]) * 2, X)
    assert moved(analysis)[0] >= 512  # of x what the op reads; how much that is of x nobody knows


def test_a_saved_session_keeps_what_was_returned(tmp_path):
    model = Calls(lambda norm, x: norm(x)[:, 0], nn.LayerNorm(16))
    with torch.no_grad(), rl.record(model, memory=True) as recording:
        model(X)
    loaded = rl.load(recording.session.save(tmp_path / "session.rooflight"))
    assert loaded.lifetimes.returned == recording.session.lifetimes.returned
    assert moved(rl.analyze(loaded, H100)) == (8 * ROW + 2 * ROW, 8 * ROW)


def test_inductor_reads_no_more_than_the_part():
    def program(x: Tensor) -> Tensor:
        return (x.sin() + 1)[:, 0].cos()

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        from torch._inductor.utils import run_and_get_code

        _, (code,) = run_and_get_code(torch.compile(program), X)
    torch._dynamo.reset()
    sizes = [int(size) for size in re.findall(r"x\d<static_cast<int64_t>\((\d+)L\); x", code)]
    elements = 1
    for size in sizes:
        elements *= size
    assert elements == 8 * 16  # one nest of loops, of 32 x 16
    assert moved(analyzed(program, X)) == (4 * elements, 4 * elements)


# -- an oracle: which elements of the inputs the results depend on -----------------------------------------------------

Step = Callable[[Tensor], Tensor]
LEFT = torch.randn(5, 16)


def _linear(x: Tensor) -> Tensor:
    return x @ LEFT[:3, : x.shape[-1]].t() if x.shape[-1] <= 16 else x


def _slice(dim: int, first: int, step: int) -> Step:
    def cut(x: Tensor) -> Tensor:
        if not x.dim():
            return x
        place = dim % x.dim()
        return x[(slice(None),) * place + (slice(min(first, x.shape[place] - 1), None, step),)]

    return cut


def _along(function: Callable[[Tensor, int], Tensor], dim: int) -> Step:
    return lambda x: function(x, dim % x.dim()) if x.dim() else x


DIMS = st.integers(0, 2)
SLICES = st.builds(_slice, DIMS, st.integers(0, 2), st.integers(1, 2))
STEPS = st.one_of(
    SLICES,
    SLICES,
    st.sampled_from(
        [
            lambda x: x + 1,
            lambda x: x.tanh(),
            lambda x: x.sigmoid().mul_(2),
            lambda x: functional.layer_norm(x, x.shape[-1:]) if x.dim() else x,
            lambda x: functional.rms_norm(x, x.shape[-1:]) if x.dim() else x,
            lambda x: x.transpose(0, -1).contiguous() if x.dim() else x,
            lambda x: x.transpose(0, -1).reshape(-1) if x.dim() else x,
            lambda x: x.flip(0) if x.dim() else x,
            lambda x: x.unsqueeze(0).expand(2, *x.shape).clone(),
            lambda x: torch.stack([x, x * 2]),
            lambda x: functional.pad(x, (1, 2)) if x.dim() else x,
            lambda x: x.tril() if x.dim() > 1 else x,
            lambda x: x[: (x.shape[0] + 1) // 2] * 2 + x[x.shape[0] // 2 :] if x.dim() else x,
            lambda x: x.repeat(*(2 for _ in x.shape)),
            lambda x: _linear(x) if x.dim() else x,
            lambda x: torch.bmm(x, x.transpose(1, 2)) if x.dim() == 3 else x,
            lambda x: functional.conv1d(x, torch.ones(2, x.shape[1], 2), stride=2, padding=1) if x.dim() == 3 else x,
            lambda x: functional.conv_transpose1d(x, torch.ones(x.shape[1], 2, 2), stride=3) if x.dim() == 3 else x,
            lambda x: functional.max_pool1d(x, 2) if x.dim() == 3 and x.shape[-1] > 1 else x,
            lambda x: functional.conv1d(x, torch.ones(2, x.shape[1], 1)) if x.dim() == 3 else x,
            lambda x: functional.scaled_dot_product_attention(x, x * 2, x + 1, is_causal=True) if x.dim() == 3 else x,
        ]
    ),
    st.builds(_along, st.just(lambda x, dim: x.softmax(dim)), DIMS),
    st.builds(_along, st.just(lambda x, dim: x.cumsum(dim)), DIMS),
    st.builds(_along, st.just(lambda x, dim: x.sum(dim)), DIMS),
    st.builds(_along, st.just(lambda x, dim: x.mean(dim, keepdim=True)), DIMS),
    st.builds(_along, st.just(lambda x, dim: torch.cat([x, x.tanh()], dim)), DIMS),
    st.builds(_along, st.just(lambda x, dim: x.index_select(dim, torch.tensor([0]))), DIMS),
)


def _run(steps: Sequence[Step], x: Tensor) -> Tensor:
    for step in steps:
        if x.numel() > 400:
            x = x.flatten()[:100]
        x = step(x)
    return x


def _needed(program: Step, x: Tensor, of: Tensor) -> int:
    """How many elements of a tensor make the result of the program not a number, if one of them is none."""
    found, flat = 0, of.view(-1)
    for place, value in enumerate(flat.tolist()):
        flat[place] = torch.nan
        found += bool(program(x).isnan().any())
        flat[place] = value
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=6))
def test_no_more_is_compulsory_than_what_the_result_depends_on(steps):
    x = torch.randn(3, 4, 4)
    program = partial(_run, steps)
    analysis = analyzed(program, x)
    lifetimes = analysis.session.lifetimes
    for tensor in (x, LEFT):  # told apart by their sizes
        own = np.flatnonzero((lifetimes.made == STOOD) & (analysis.session.storage_bytes == 4 * tensor.numel()))
        with torch.no_grad():
            depends = _needed(program, x, tensor) if len(own) else 0
        for storage in own.tolist():
            assert all(region.reads.get(storage, 0) <= 4 * depends for region in analysis.fusion.regions)
    assert moved(analysis)[1] <= 4 * program(x).numel()
    assert analysis.program.program_bound_s <= analysis.program.fused_bound_s <= analysis.totals.op_bound_s * 1.000001
