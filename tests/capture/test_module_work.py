"""Modules of known classes are costed by their shapes where no dispatcher saw their kernels, and counted once where it
did. The stand-ins compute with numpy through pointers; the real ones need a GPU and never ran here.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from outside_kernels import Doubling, write
from recorded_model import built, recorded
from standin_modules import (
    DotProductAttention,
    FlashAttention,
    FlashCrossAttention,
    FlashSelfAttention,
    FusedAttention,
    FusedLayerNorm,
    FusedRMSNorm,
    GroupedLinear,
    LayerNormLinear,
    LayerNormMLP,
    MegatronDotProductAttention,
    MixedFusedLayerNorm,
    PackedDotProductAttention,
    RMSNorm,
    SingleGroupedLinear,
    TEColumnParallelLinear,
    TEDotProductAttention,
    TEFusedMLP,
    TELayerNormColumnParallelLinear,
    TELinear,
    TERowParallelLinear,
    unknown,
)
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import rooflight as rl
from rooflight.costs import modules
from rooflight.costs.modules import ModuleCall, ModuleOp, ModuleWork, module_formula_of
from rooflight.records.record import OpRecord
from rooflight.records.signature import WRITTEN_OUTSIDE

DEVICE = "H100-SXM5-80GB"


def tensor(*shape: int) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


def unseen(session: rl.Session) -> list[OpRecord]:
    return [op for op in session.records if op.signature.is_unseen]


def step(module: nn.Module, *args: Any, **kwargs: Any) -> Callable[[], None]:
    def run() -> None:
        out = module(*args, **kwargs)
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    return run


def matrix_flops(session: rl.Session) -> tuple[int, int]:
    """Of forward and of backward."""
    groups = {group.name: group.matrix_flops for group in rl.analyze(session, DEVICE).by("direction")}
    return groups["forward"], groups["backward"]


# -- what each class costs ---------------------------------------------------------------------------------------------

CASES = {
    # 2 * 6 rows * 8 * 6 = 576; as much for dx, and for dw
    "TELinear": (TELinear(8, 6), [tensor(2, 3, 8)], (576, 1152)),
    "TEColumnParallelLinear": (TEColumnParallelLinear(8, 6), [tensor(2, 3, 8)], (576, 1152)),
    "TERowParallelLinear": (TERowParallelLinear(8, 6), [tensor(2, 3, 8)], (576, 1152)),
    "a first layer, whose input needs no gradient": (TELinear(8, 6), [torch.ones(2, 3, 8)], (576, 576)),
    "LayerNormLinear": (LayerNormLinear(8, 6), [tensor(2, 3, 8)], (576, 1152)),
    "TELayerNormColumnParallelLinear": (
        TELayerNormColumnParallelLinear(8, 6, "RMSNorm"), [tensor(2, 3, 8)], (576, 1152)
    ),
    # fc1 2 * 6 * 8 * 16 = 1536, fc2 as much
    "LayerNormMLP": (LayerNormMLP(8, 16), [tensor(2, 3, 8)], (3072, 6144)),
    # fc1 2 * 6 * 8 * 32 = 3072, fc2 1536
    "LayerNormMLP, gated": (LayerNormMLP(8, 16, "swiglu"), [tensor(2, 3, 8)], (4608, 9216)),
    # ten rows, whichever experts they go to: 2 * 10 * 4 * 5
    "GroupedLinear": (GroupedLinear(3, 4, 5), [tensor(10, 4), [2, 0, 8]], (400, 800)),
    "GroupedLinear, one weight": (SingleGroupedLinear(3, 15, 4), [tensor(10, 4), [2, 0, 8]], (400, 800)),
    "GroupedLinear, one of three dimensions": (SingleGroupedLinear(3, 3, 5, 4), [tensor(10, 4), [2, 0, 8]], (400, 800)),
    # 2 * 2 sequences * 4 heads * 64 pairs * (16 + 16); backward 2.5 times as much
    "FlashSelfAttention": (FlashSelfAttention(), [tensor(2, 8, 3, 4, 16)], (32768, 81920)),
    # 8 * 9 / 2 = 36 pairs
    "FlashSelfAttention, causal": (FlashSelfAttention(causal=True), [tensor(2, 8, 3, 4, 16)], (18432, 46080)),
    # 1 + 2 + 3 + 5 * 4 = 26 pairs
    "FlashSelfAttention, in windows": (
        FlashSelfAttention(causal=True, window_size=(3, 0)), [tensor(2, 8, 3, 4, 16)], (13312, 33280)
    ),
    # 12 packed tokens in sequences of at most 4: 12 * 4 pairs; 2 * 4 heads * 48 * 32
    "FlashSelfAttention, packed": (
        FlashSelfAttention(), [tensor(12, 3, 4, 16), None, torch.tensor([0, 4, 8, 12]), 4], (12288, 30720)
    ),
    # 8 queries, 5 keys: 40 pairs
    "FlashCrossAttention": (FlashCrossAttention(), [tensor(2, 8, 4, 16), tensor(2, 5, 2, 4, 16)], (20480, 51200)),
    # [sequence, batch, heads, size], two heads of keys for four of queries
    "DotProductAttention": (
        DotProductAttention(), [tensor(8, 2, 4, 16), tensor(8, 2, 2, 16), tensor(8, 2, 2, 16)], (18432, 46080)
    ),
    "TEDotProductAttention": (
        TEDotProductAttention("no_mask"), [tensor(8, 2, 4, 16) for _ in range(3)], (32768, 81920)
    ),
    **{
        f"{kind.__name__} {layout}": (
            kind(), [*(tensor(*shape) for _ in range(3)), None, layout, None, "no_mask"], (32768, 81920)
        )
        for kind in (FlashAttention, FusedAttention)
        for layout, shape in (("sbhd_sbhd_sbhd", (8, 2, 4, 16)), ("bshd_bshd_bshd", (2, 8, 4, 16)))
    },
    "qkv_layer": (PackedDotProductAttention("no_mask"), [None, tensor(8, 2, 3, 4, 16)], (32768, 81920)),
    "qkv_layer, -2": (PackedDotProductAttention("no_mask"), [None, tensor(8, 2, 4, 3, 16), None, -2], (32768, 81920)),
    "kv_layer": (
        PackedDotProductAttention("no_mask"), [tensor(8, 2, 4, 16), None, tensor(5, 2, 2, 4, 16)], (20480, 51200)
    ),
    # three sequences of 4, as FlashSelfAttention, packed
    "packed_seq_params": (
        MegatronDotProductAttention("no_mask"),
        [*(tensor(12, 4, 16) for _ in range(3)), None, None, SimpleNamespace(cu_seqlens_q=torch.tensor([0, 4, 8, 12]))],
        (12288, 30720),
    ),
    "TEFusedMLP": (TEFusedMLP(LayerNormLinear(8, 16), TELinear(16, 8)), [tensor(2, 3, 8)], (3072, 6144)),
    "TEFusedMLP, gated, no norm": (TEFusedMLP(TELinear(8, 32), TELinear(16, 8)), [tensor(2, 3, 8)], (4608, 9216)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_matrix_flops(name):
    module, args, expected = CASES[name]
    session = recorded(step(module, *args), module)
    assert matrix_flops(session) == expected
    assert rl.analyze(session, DEVICE).coverage.uncosted == ()
    assert {op.module.class_name for op in unseen(session)} == {type(module).__name__}


@pytest.mark.parametrize(
    ("module", "per_element"),
    [(FusedLayerNorm(8), 8), (MixedFusedLayerNorm(8), 8), (FusedRMSNorm(8), 5), (RMSNorm(8), 5)],
)
def test_norms(module, per_element):
    session = recorded(step(module, tensor(2, 3, 8)), module)
    forward, backward = unseen(session)
    flops = {op.direction.label: rl.analyze(session, DEVICE).costs[session.signatures.index(op.signature)]
             for op in (forward, backward)}  # fmt: skip
    assert flops["forward"].vector_flops == per_element * 48
    assert flops["backward"].vector_flops == 2 * per_element * 48
    # x and the parameters read, y and one or two float32 statistics for each of six rows written
    parameters = sum(p.numel() for p in module.parameters())
    statistics = 6 * (2 if per_element == 8 else 1)
    assert flops["forward"].bytes_read == 4 * (48 + parameters)
    assert flops["forward"].bytes_written == 4 * (48 + statistics)


def test_training_with_them_gives_the_same_bits():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), TELinear(8, 6))

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(torch.arange(24.0).view(2, 3, 4))[0].relu().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    plain = gradients()
    with rl.record(model):
        watched = gradients()
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert len(plain) == 4


def test_without_gradients_there_is_no_backward():
    module = TELinear(8, 6)
    with torch.no_grad():
        session = recorded(lambda: module(torch.ones(2, 3, 8)), module)
    assert [op.signature.name for op in unseen(session)] == ["aten::linear"]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_runs_forward_again(reentrant):
    module = nn.Sequential(LayerNormLinear(8, 6), nn.Tanh())
    x = tensor(2, 3, 8)
    session = recorded(lambda: checkpoint(module, x, use_reentrant=reentrant).sum().backward(), module)
    assert matrix_flops(session) == (576, 576 + 1152)


def test_a_backward_pass_after_the_recording_is_none_of_its_own():
    module = TELinear(8, 6)
    with rl.record(module) as recording:
        out, _ = module(tensor(2, 3, 8))
    count = len(recording.session)
    out.sum().backward()
    assert len(recording.session) == count
    assert module.weight.grad is not None


def test_each_of_two_recordings_takes_its_own_note():
    module = TELinear(8, 6)
    with rl.record(module) as outer, rl.record(module) as inner:
        step(module, tensor(2, 3, 8))()
    assert matrix_flops(outer.session) == matrix_flops(inner.session) == (576, 1152)


def test_memory_and_times_go_with_it():
    model = nn.Sequential(nn.Linear(4, 8), LayerNormMLP(8, 16))
    session = recorded(step(model, torch.ones(2, 3, 4)), model, memory=True, times=True)
    assert len(unseen(session)) > 5
    analysis = rl.analyze(session, DEVICE)
    assert analysis.memory.peak_bytes > 0
    assert analysis.program.program_bound_s <= analysis.program.fused_bound_s <= analysis.totals.op_bound_s


def test_on_the_meta_device():
    class TEColumnParallelLinear(nn.Linear):
        """On meta a kernel has nothing to write."""

        def forward(self, x):
            return x.new_empty(*x.shape[:-1], self.out_features)

    with torch.device("meta"):
        module = TEColumnParallelLinear(8, 6)
        session = recorded(lambda: module(torch.ones(2, 3, 8)).relu(), module)
    assert rl.analyze(session, DEVICE).totals.matrix_flops == 576
    assert rl.analyze(session, DEVICE).coverage.uncosted == ()


def test_operands_of_an_fp8_region_run_at_the_fp8_peak():
    module = TELinear(4096, 4096)
    fast = TELinear(4096, 4096)
    fast.fp8 = True
    bounds = []
    for layer in (module.to(torch.float32), fast):
        with torch.no_grad():
            session = recorded(lambda layer=layer: layer(torch.ones(2, 512, 4096)), layer)
        (op,) = (op for op in rl.analyze(session, DEVICE).operations if op.signature.is_unseen)
        bounds.append(op)
    plain, narrow = bounds
    assert plain.cost.matrix_dtype == "float32"
    assert narrow.cost.matrix_dtype == "float8_e4m3fn"
    assert narrow.cost.bytes_read < plain.cost.bytes_read
    assert narrow.bound_s < plain.bound_s


# -- counted once ------------------------------------------------------------------------------------------------------


class Seen:
    """Modules of the same names, whose ops the dispatcher sees."""

    class TELinear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6, 8))

        def forward(self, x):
            return functional.linear(x, self.weight)

    class RMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight

    class FusedLayerNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x):
            return functional.layer_norm(x, (8,), self.weight)

    class FlashSelfAttention(nn.Module):
        def forward(self, qkv):
            q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    class DotProductAttention(nn.Module):
        """As Megatron's own: products of all pairs, whatever the mask hides."""

        attn_mask_type = "causal"

        def forward(self, query, key, value):
            q, k, v = (t.permute(1, 2, 0, 3) for t in (query, key, value))
            return (q @ k.transpose(-1, -2)).softmax(-1) @ v


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        (Seen.TELinear, [(2, 3, 8)]),
        (Seen.RMSNorm, [(2, 3, 8)]),
        (Seen.FusedLayerNorm, [(2, 3, 8)]),
        (Seen.FlashSelfAttention, [(2, 8, 3, 4, 16)]),
        (Seen.DotProductAttention, [(8, 2, 4, 16)] * 3),
        (lambda: nn.LayerNorm(8), [(2, 3, 8)]),
    ],
)
def test_what_the_dispatcher_saw_is_not_counted_again(kind, shapes):
    module = kind()
    for _ in range(2):
        session = recorded(step(module, *(tensor(*shape) for shape in shapes)), module)
        assert unseen(session) == []


@torch.library.custom_op("module_work::product", mutates_args=())
def custom_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight.t()


def test_an_op_without_a_formula_is_listed_and_not_guessed_at():
    class TELinear(Seen.TELinear):
        def forward(self, x):
            return custom_product(x, self.weight)

    module = TELinear()
    session = recorded(lambda: module(torch.ones(2, 3, 8)).relu(), module)
    assert unseen(session) == []
    assert reasons(session) == "no formula"


def test_only_what_is_missing_is_filled_in():
    """As Megatron accumulates gradients: dx by torch, dw by a kernel that adds to a buffer of its own."""

    class Accumulate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight.t()

        @staticmethod
        def backward(ctx, dy):
            return dy @ ctx.saved_tensors[1], None

    class ColumnParallelLinear(Seen.TELinear):
        def forward(self, x):
            return Accumulate.apply(x, self.weight), None

    module = ColumnParallelLinear()
    session = recorded(step(module, tensor(2, 3, 8)), module)
    (dw,) = unseen(session)
    assert dw.signature.attribute("output_mask") == (False, True, False)
    assert matrix_flops(session) == (576, 1152)


def test_modules_of_known_classes_within_each_other_count_once():
    class TEDotProductAttention(nn.Module):
        attn_mask_type = "causal"

        def __init__(self) -> None:
            super().__init__()
            self.flash = FlashSelfAttention(causal=True)

        def forward(self, query, key, value):
            packed = torch.stack([query, key, value], dim=2).transpose(0, 1).contiguous()
            return self.flash(packed).transpose(0, 1)

    module = TEDotProductAttention()
    session = recorded(step(module, *(tensor(8, 2, 4, 16) for _ in range(3))), module)
    assert [op.module.class_name for op in unseen(session)] == ["FlashSelfAttention"] * 2


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=1, max_size=5), data=st.data())
def test_recorded_and_filled_in_products_add_up_to_those_expected(sizes, data):
    def product(rows: int, k: int, n: int) -> ModuleOp:
        call = ModuleCall(module=None, arguments={}, inputs=(), outputs=(), parameters={})
        x, weight, out = (call.new(*shape, dtype="float32") for shape in ((rows, k), (n, k), (rows, n)))
        return ModuleOp(name="aten::linear", inputs={"input": x, "weight": weight}, outputs=[out])

    expected = [product(*size) for size in sizes]
    seen = [op for op in expected if data.draw(st.booleans())]
    absent = modules.missing(expected, [op.signature for op in seen])
    # each recorded one keeps itself or others of its size from being filled in
    assert len(absent) >= len(expected) - len(seen)
    flops = {op: 2 * m * k * n for op, (m, k, n) in zip(map(id, expected), sizes, strict=True)}
    assert sum(flops[id(op)] for op in absent) >= sum(flops.values()) - sum(flops[id(op)] for op in seen)
    assert modules.missing(expected, [op.signature for op in expected]) == []
    assert modules.missing(expected, []) == expected


# -- a class of one's own ----------------------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch) -> None:
    module_formula_of("TELinear")  # loads what comes with Rooflight
    monkeypatch.setattr(modules, "_formulas", dict(modules._formulas))


class MyFusedLinear(TELinear):
    """Derived from a class that is known, under a name that is not."""


def test_a_class_of_ones_own_in_one_line(registry):
    def forward(self, x):
        return unknown((2, 3, 6), x, self.weight)

    module = built(forward, "Mine", weight=nn.Parameter(torch.ones(6, 8)))
    assert "written outside the dispatcher" in reasons(recorded(lambda: module(tensor(2, 3, 8)).relu(), module))
    rl.module_formula("Mine")(module_formula_of("TELinear"))
    session = recorded(step(module, tensor(2, 3, 8)), module)
    assert matrix_flops(session) == (576, 1152)
    assert matrix_flops(recorded(step(MyFusedLinear(8, 6), tensor(2, 3, 8)))) == (576, 1152)


def reasons(session: rl.Session) -> str:
    return " ".join(op.reason for op in rl.analyze(session, DEVICE).coverage.uncosted)


def test_a_formula_of_ones_own(registry):
    @rl.module_formula("Doubling")
    def doubling(call: ModuleCall) -> ModuleWork:
        return ModuleWork(
            forward=[ModuleOp(name="aten::add", inputs={"self": call.inputs[0]}, outputs=[call.outputs[0]])]
        )

    module = Doubling()
    session = recorded(lambda: module(torch.ones(5)).relu(), module)
    analysis = rl.analyze(session, DEVICE)
    assert analysis.coverage.uncosted == ()
    # 5 additions, 5 comparisons
    assert analysis.totals.vector_flops == 10


def test_the_report_says_what_was_inferred(registry):
    module = TELinear(4, 4)
    inferred = rl.analyze(recorded(lambda: module(torch.ones(2, 4)), module), DEVICE)
    assert "1 call was not recorded, because the kernels bypass torch's dispatcher: linear." in str(inferred)
    seen = nn.Linear(4, 4)
    assert "bypass" not in str(rl.analyze(recorded(lambda: seen(torch.ones(2, 4)), seen), DEVICE))


def test_a_formula_that_fails_is_listed_with_its_reason(registry):
    @rl.module_formula("Doubling")
    def doubling(call: ModuleCall) -> ModuleWork:
        raise KeyError("weight")

    module = Doubling()
    session = recorded(lambda: module(torch.ones(5)).relu(), module)
    (missing,) = rl.analyze(session, DEVICE).coverage.uncosted
    assert missing.reason == "module formula failed: KeyError: 'weight'"
    assert (missing.calls, missing.modules, missing.bytes) == (1, ("Doubling",), 20)


def test_a_formula_that_cannot_tell_leaves_it_to_the_coverage(registry):
    rl.module_formula("Doubling")(lambda call: None)
    assert reasons(recorded(lambda: Doubling()(torch.ones(5)).relu())) == "written outside the dispatcher"


def test_mistakes_in_registering(registry):
    with pytest.raises(ValueError, match='"TELinear" already have a formula, linear'):
        rl.module_formula("New", "TELinear")(lambda call: None)
    with pytest.raises(ValueError, match='no module formula for "New"'):
        module_formula_of("New")
    with pytest.raises(ValueError, match="at least one name"):
        rl.module_formula()
    with pytest.raises(TypeError, match="takes names of classes"):
        rl.module_formula(lambda call: None)


def test_a_module_that_raises_leaves_nothing_behind():
    class TELinear(nn.Module):
        def forward(self, x, fail):
            if fail:
                raise RuntimeError("no")
            return write(torch.empty(2, 3, 6), 1.0)

    module = TELinear()

    def run() -> None:
        with pytest.raises(RuntimeError, match="no"):
            module(torch.ones(2, 3, 8), True)
        module(torch.ones(2, 3, 8), False)

    # without a weight nobody can tell what was computed, but that the result was written outside can be seen
    assert [one.signature.name for one in unseen(recorded(run, module))] == [WRITTEN_OUTSIDE]
