"""The classes of Transformer Engine whose work Rooflight knows by name are in its sources, and take the arguments it
reads. Its kernels need CUDA, so that the sources are read, not imported.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from rooflight.costs.families.fused_modules import _ACTIVATIONS
from rooflight.costs.modules import module_formula_of

SPEC = find_spec("transformer_engine")
pytestmark = pytest.mark.skipif(
    SPEC is None,
    reason="no sources: pip install --no-deps --target FOLDER transformer-engine==2.20.2, and FOLDER on PYTHONPATH",
)

PACKED = {"qkv_layer", "kv_layer", "qkv_interleave_dim"}
ATTENTION = {"query_layer", "key_layer", "value_layer", "attention_mask", "cu_seqlens_q", "attn_mask_type"}
READ = {
    # arguments of forward; attributes and parameters that __init__ or what it calls sets
    "Linear": ({"inp"}, {"weight", "bias", "return_bias"}),
    "LayerNormLinear": ({"inp"}, {"weight", "bias", "layer_norm_weight", "normalization", "return_bias"}),
    "LayerNormMLP": (
        {"inp"},
        {"fc1_weight", "fc2_weight", "fc1_bias", "fc2_bias", "layer_norm_weight", "normalization", "activation"},
    ),
    "GroupedLinear": ({"inp", "m_splits"}, {"weight", "bias", "return_bias"}),
    "DotProductAttention": (ATTENTION | PACKED | {"window_size"}, {"attn_mask_type", "qkv_format", "window_size"}),
    "FlashAttention": (ATTENTION | {"qkv_layout", "window_size"}, set()),
    "FusedAttention": (ATTENTION | {"qkv_layout", "window_size"}, set()),
}


def tree(path: str) -> ast.Module:
    assert SPEC is not None
    assert SPEC.submodule_search_locations
    return ast.parse((Path(SPEC.submodule_search_locations[0]) / path).read_bytes())


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """All classes of transformer_engine.pytorch by name."""
    assert SPEC is not None
    assert SPEC.submodule_search_locations
    found: dict[str, list[ast.ClassDef]] = {}
    for path in sorted((Path(SPEC.submodule_search_locations[0]) / "pytorch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def method(name: str, of: ast.ClassDef) -> ast.FunctionDef | None:
    return next((each for each in of.body if isinstance(each, ast.FunctionDef) and each.name == name), None)


def named(of: ast.AST) -> set[str]:
    """What is set as an attribute, or stands there as a text: the name of a parameter."""
    nodes = list(ast.walk(of))
    return {each.attr for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)} | {
        str(each.value) for each in nodes if isinstance(each, ast.Constant)
    }


@pytest.mark.parametrize("name", READ)
def test_classes_take_what_is_read_of_them(name):
    arguments, attributes = READ[name]
    module_formula_of(name)
    (layer,) = [each for each in classes()[name] if method("forward", each)]
    forward = method("forward", layer)
    assert forward is not None
    assert arguments <= {each.arg for each in forward.args.args}
    assert attributes <= named(layer)


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_norms_are_operations_with_a_weight(name):
    module_formula_of(name)
    assert any("weight" in named(each) and method("op_forward", each) for each in classes()[name])


def test_every_layer_says_whether_it_computes_in_fewer_bits():
    (base,) = classes()["TransformerEngineBaseModule"]
    assert {"fp8", "fp8_meta"} <= named(base)


def test_what_computes_in_four_bits_says_so_in_its_name():
    recipes = {each.name for each in ast.walk(tree("common/recipe/__init__.py")) if isinstance(each, ast.ClassDef)}
    assert [each for each in recipes if "FP4" in each] == ["NVFP4BlockScaling"]


def test_activations_have_the_names_that_are_read():
    assert set(_ACTIVATIONS) <= named(tree("pytorch/module/layernorm_mlp.py"))
