"""Results on meta from memory: no different from those that torch works out, and nobody notices."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_model import FunctionNames, Names

import rooflight as rl
from rooflight.sources.capture.record import dispatch
from rooflight.sources.capture.record.meta_results import remembering


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def form(value):
    tensors = value if isinstance(value, tuple | list) else (value,)
    return [(t.shape, t.stride(), t.dtype, t.storage_offset(), t.untyped_storage().nbytes(), t.device) for t in tensors]


class Counting:
    """An op, and how often it really ran."""

    def __init__(self, func):
        self.calls = 0
        self.remembered = remembering(func, self._run)
        self._func = func

    def _run(self, *args, **kwargs):
        self.calls += 1
        return self._func(*args, **kwargs)


ATEN = torch.ops.aten
CONVOLVED = (empty(2, 3, 8, 8), empty(4, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (ATEN.add.Tensor, (empty(3, 4), empty(4))),
        (ATEN.tanh.default, (empty(4, 3).t(),)),
        (ATEN.mm.default, (empty(2, 3), empty(3, 4))),
        (ATEN.sum.dim_IntList, (empty(2, 3), [1], True)),
        (ATEN.max.dim, (empty(2, 3), 0)),
        (ATEN.native_layer_norm.default, (empty(2, 3), [3], None, None, 1e-5)),
        (ATEN.cat.default, ([empty(2), empty(3)],)),
        (ATEN.convolution.default, CONVOLVED),
        (ATEN.add_.Tensor, (empty(3, 4), empty(4))),
        (ATEN.sigmoid_.default, (empty(3, 4).t(),)),
        (ATEN.fill_.Scalar, (empty(2), 1.5)),
    ],
)  # fmt: skip
def test_the_second_call_of_a_kind_gives_what_torch_would(func, args):
    op = Counting(func)
    expected = func(*args)
    first, second = op.remembered(*args), op.remembered(*args)
    assert form(first) == form(second) == form(expected)
    if func is not ATEN.cat.default:  # it begins with a list: such are few
        assert op.calls == 1
    if func._schema.name.endswith("_"):
        assert second is args[0]
    else:
        ours = {t.untyped_storage()._cdata for t in (second if isinstance(second, tuple) else (second,))}
        assert not ours & {t.untyped_storage()._cdata for t in args if isinstance(t, torch.Tensor)}
        assert second is not first


@pytest.mark.parametrize(
    ("func", "calls"),
    [
        (ATEN.add.Tensor, [(empty(3, dtype=torch.int64), 1), (empty(3, dtype=torch.int64), 1.0)]),
        (ATEN.add.Tensor, [(empty(3, dtype=torch.bool), True), (empty(3, dtype=torch.bool), 1)]),
        (ATEN.tanh.default, [(empty(4, 3),), (empty(3, 4).t(),)]),
        (ATEN.sum.dim_IntList, [(empty(3, 4), [0]), (empty(3, 4), [1]), (empty(3, 4), [0], True)]),
        (ATEN.constant_pad_nd.default, [(empty(3), [1, 1]), (empty(3), [1, 2])]),
        (ATEN._to_copy.default, [(empty(3),)]),
    ],
)
def test_what_a_result_depends_on_keeps_calls_apart(func, calls):
    op = Counting(func)
    for _ in range(2):
        for args in calls:
            assert form(op.remembered(*args)) == form(func(*args))
    assert op.calls == len(calls)


def test_settings_by_keyword_and_the_default_dtype_keep_calls_apart():
    op = Counting(ATEN._to_copy.default)
    x = empty(3, dtype=torch.int32)
    for dtype in (torch.float16, torch.float64, torch.float16):
        assert op.remembered(x, dtype=dtype).dtype is dtype
    divide = Counting(ATEN.div.Tensor)
    assert divide.remembered(x, 2).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert divide.remembered(x, 2).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("func", "make"),
    [
        (ATEN.view.default, lambda: (empty(6), [2, 3])),
        (ATEN._unsafe_view.default, lambda: (empty(6), [2, 3])),
        (ATEN.resize_.default, lambda: (empty(6), [12])),
        (ATEN.squeeze_.default, lambda: (empty(1, 6),)),
        (ATEN.t_.default, lambda: (empty(4, 4),)),
        (ATEN.set_.source_Tensor, lambda: (empty(4), empty(4))),
        (ATEN.set_.default, lambda: (empty(0),)),
        (ATEN.neg.default, lambda: (empty(3, dtype=torch.complex64),)),
        (ATEN.tanh.default, lambda: (torch.zeros(3),)),
    ],
)
def test_what_is_more_than_new_memory_runs_each_time(func, make):
    op = Counting(func)
    for _ in range(3):
        op.remembered(*make())
    assert op.calls == 3


def test_results_that_the_caller_gives_are_written_each_time():
    op, out = Counting(ATEN.add.out), empty(3)
    for _ in range(3):
        assert op.remembered(empty(3), empty(3), out=out) is out
    assert op.calls == 3


def test_overlap_is_for_torch_to_judge_in_every_call():
    op = Counting(ATEN.add_.Tensor)
    x = empty(4, 4)
    op.remembered(x, empty(4, 4).t())
    assert op.remembered(x, empty(4, 4).t()) is x
    assert op.calls == 1
    op.remembered(x, x.t())  # on a device this raises, as it does where torch checks it on meta too
    assert op.calls == 2


def test_errors_are_raised_each_time():
    op = Counting(ATEN.mm.default)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            op.remembered(empty(2, 3), empty(2, 3))
    assert op.calls == 2


def test_numbers_that_never_repeat_do_not_fill_memory(monkeypatch):
    monkeypatch.setattr("rooflight.sources.capture.record.meta_results._MOST_KINDS", 8)
    op, x = Counting(ATEN.add.Tensor), empty(2)
    for number in range(100):
        op.remembered(x, float("nan") if number % 2 else float(number))
    assert op.calls == 100
    op.remembered(x, 0.0)  # the first of them was forgotten
    assert op.calls == 101


def test_other_modes_see_every_call():
    x = empty(3)
    with Names() as seeing, rl.record() as recording:
        for _ in range(5):
            torch.tanh(x)
    assert (len(seeing.names), len(recording.session)) == (5, 5)
    with FunctionNames() as noticing, rl.record():
        for _ in range(5):
            torch.tanh(x)
    assert noticing.names.count("tanh") == 5
    assert "empty_strided" not in noticing.names


def test_nested_recordings_both_see_every_call():
    x = empty(3)
    with rl.record() as outer, rl.record() as inner:
        for _ in range(5):
            torch.tanh(x)
    assert len(outer.session) == len(inner.session) == 5


UNARY = [torch.tanh, torch.relu, torch.Tensor.sigmoid_, torch.Tensor.t, torch.Tensor.contiguous, torch.Tensor.clone,
         lambda x: x.mul_(2), lambda x: x + 1, lambda x: x.sum(0, keepdim=True).expand_as(x), lambda x: x @ x,
         lambda x: torch.chunk(x, 2)[0].repeat(2, 1), lambda x: torch.softmax(x, -1), lambda x: x.to(torch.float64),
         lambda x: torch.cat([x[:2], x[2:]]), lambda x: torch.nn.functional.layer_norm(x, (4,))]  # fmt: skip


def recorded(steps, requires_grad):
    x = empty(4, 4).requires_grad_(requires_grad)
    with rl.record(memory=True) as recording:
        y = x + 0
        for step in steps:
            y = UNARY[step](y)
        if requires_grad:
            y.sum().backward()
    columns = recording.session.columns
    return (
        [recording.session.signatures[number] for number in columns.signature],
        columns.read_ids.tolist(),
        columns.written_ids.tolist(),
        recording.session.storage_bytes.tolist(),
        recording.session.lifetimes.freed.tolist(),
        form(y),
        y._version,
        None if not requires_grad else form(x.grad),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(UNARY) - 1), max_size=8), st.booleans())
def test_a_program_is_recorded_as_without_memory(steps, requires_grad):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "remembering", lambda func, run: run)
        try:
            plain = recorded(steps * 2, requires_grad)
        except RuntimeError:  # an in-place op on what backward needs
            plain = None
    try:
        remembered = recorded(steps * 2, requires_grad)
    except RuntimeError:
        remembered = None
    assert remembered == plain


@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(("image", "weight"), [(True, False), (False, True), (True, True), (False, False)])
@pytest.mark.parametrize("dims", [2, 3])
def test_a_convolution_has_the_layout_that_it_has_on_a_cpu(dims, image, weight, groups, transposed):
    layouts = [(torch.channels_last if dims == 2 else torch.channels_last_3d) if each else torch.contiguous_format
               for each in (image, weight)]  # fmt: skip
    strides = []
    for device in ("cpu", "meta"):
        x = torch.ones(2, 8, *[6] * dims, device=device).contiguous(memory_format=layouts[0])
        w = torch.ones(8, 8 // groups, *[3] * dims, device=device).contiguous(memory_format=layouts[1])
        settings = [1] * dims, [0] * dims, [1] * dims, transposed, [0] * dims, groups
        with rl.record() as recording:
            out = [ATEN.convolution.default(x, w, None, *settings).relu() for _ in range(2)]
        strides.append(
            [out[0].stride(), out[1].stride(), [op.outputs[0].strides for op in recording.session.signatures]]
        )
    assert strides[0] == strides[1]


def test_ops_that_torch_has_no_rule_for_on_meta():
    """Shapes as the ops' own documents have them; the plain calls raise, or ask for a fake tensor."""
    made = lambda *shape, dtype=torch.float32: torch.empty(*shape, dtype=dtype, device="meta")  # noqa: E731
    bf16, fp8 = torch.bfloat16, torch.float8_e4m3fn
    left, right, one, out = made(64, 128, dtype=fp8), made(256, 128, dtype=fp8).t(), made(()), made(64, 256, dtype=bf16)
    packed, scales = made(64, 8, 32, 4, dtype=torch.int32), made(4, 512, 2, dtype=bf16)
    x = made(5, 90)
    with rl.record() as recording:
        assert torch._scaled_mm(left, right, one, one, out_dtype=bf16, out=out) is out
        assert torch._weight_int4pack_mm(made(4, 256, dtype=bf16), packed, 64, scales).shape == (4, 512)
        assert torch.cov(x).shape == torch.corrcoef(x).shape == (5, 5)
    flops = [op.matrix_flops for op in rl.analyze(recording.session, "H100-SXM5-80GB").operations if op.matrix_flops]
    assert sorted(flops) == sorted([2 * 64 * 128 * 256, 2 * 4 * 256 * 512, 2 * 2 * 5 * 5 * 90])
