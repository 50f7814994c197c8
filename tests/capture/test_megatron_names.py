"""The classes of megatron-core whose work Rooflight knows by name are in its sources, and take the arguments it reads.

Its wrappers of Transformer Engine cannot be imported without that, so their sources are read.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from rooflight.costs.modules import module_formula_of

pytestmark = pytest.mark.skipif(
    find_spec("megatron") is None, reason="megatron-core is not installed: pip install --no-deps megatron-core==0.16.1"
)

FOLDERS = ("extensions", "fusions", "tensor_parallel", "transformer")
ATTENTION = {"query", "key", "value", "attention_mask", "attn_mask_type"}
READ = {
    # arguments of forward, and attributes that __init__ sets or a base class of Transformer Engine's has
    "ColumnParallelLinear": ({"weight"}, {"skip_bias_add", "weight", "bias"}),
    "RowParallelLinear": (set(), {"skip_bias_add", "weight", "bias"}),
    "TELinear": (set(), {"te_return_bias"}),
    "TELayerNormColumnParallelLinear": (set(), {"te_return_bias"}),
    "TEGroupedLinear": ({"m_splits"}, {"te_return_bias"}),
    "DotProductAttention": (ATTENTION, {"attn_mask_type"}),
    "TEDotProductAttention": (ATTENTION | {"packed_seq_params"}, set()),
    "FusedScaleMaskSoftmax": ({"input", "mask"}, set()),
    "FusedLayerNorm": ({"input"}, {"weight", "bias"}),
    "TEFusedMLP": ({"hidden_states"}, set()),
}
BASES = {
    "TELinear": "Linear",
    "TELayerNormColumnParallelLinear": "LayerNormLinear",
    "TEColumnParallelLinear": "TELinear",
    "TERowParallelLinear": "TELinear",
    "TEGroupedLinear": "GroupedLinear",
    "TEColumnParallelGroupedLinear": "TEGroupedLinear",
    "TERowParallelGroupedLinear": "TEGroupedLinear",
    "TEDotProductAttention": "DotProductAttention",
    "TEFusedMLP": "MLP",
    # those of inference, which have no formula of their own name
    "InferenceLayerNormColumnParallelLinear": "TELayerNormColumnParallelLinear",
    "InferenceRowParallelLinear": "TERowParallelLinear",
}


@cache
def classes() -> dict[str, ast.ClassDef]:
    """All classes of megatron.core by name, the first of each."""
    spec = find_spec("megatron.core")
    assert spec is not None
    assert spec.origin is not None
    found = {}
    core = Path(spec.origin).parent
    for path in (*core.glob("*.py"), *(each for folder in FOLDERS for each in sorted((core / folder).rglob("*.py")))):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, node)
    return found


def method(name: str, of: str) -> ast.FunctionDef | None:
    return next((each for each in classes()[of].body if isinstance(each, ast.FunctionDef) and each.name == name), None)


@pytest.mark.parametrize("name", READ)
def test_classes_take_what_is_read_of_them(name):
    arguments, attributes = READ[name]
    module_formula_of(name)
    forward = method("forward", name)
    assert forward is not None
    assert arguments <= {each.arg for each in forward.args.args}
    nodes = list(ast.walk(classes()[name]))
    assigned = {each.attr for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)}
    registered = {str(each.value) for each in nodes if isinstance(each, ast.Constant)}
    assert attributes <= assigned | registered


@pytest.mark.parametrize("name", BASES)
def test_classes_derive_from_those_with_a_formula(name):
    assert BASES[name] in [ast.unparse(base).rpartition(".")[2] for base in classes()[name].bases]


def test_a_norm_of_transformer_engine_is_what_the_factory_makes():
    made = method("__new__", "TENorm")
    assert made is not None
    called = {ast.unparse(each.func) for each in ast.walk(made) if isinstance(each, ast.Call)}
    assert {"te.pytorch.LayerNorm", "te.pytorch.RMSNorm"} <= called


def test_packed_sequences_have_the_name_that_is_read():
    fields = {ast.unparse(each.target) for each in classes()["PackedSeqParams"].body if isinstance(each, ast.AnnAssign)}
    assert "cu_seqlens_q" in fields


def test_the_fused_mlp_holds_the_parameters_that_are_read():
    read = {ast.unparse(each) for each in ast.walk(classes()["TEFusedMLP"]) if isinstance(each, ast.Attribute)}
    assert {f"self.linear_fc{number}.weight" for number in (1, 2)} | {"self.linear_fc1.layer_norm_weight"} <= read
