import subprocess
import sys
from types import ModuleType

import pytest
import torch.distributed._functional_collectives  # noqa: F401 - registers its ops
from builders import cost, op, spec

from rooflight.costs import registry
from rooflight.costs.cost import OpCost, Traits, Uncosted
from rooflight.costs.registry import cost_of, find, formula, registered, traits_of

FOREIGN = (
    "flash_attn::",
    "rooflight::",
    "higher_order::",
    "fsdp::",
    "torch_nn::",
    "quantized_decomposed::",
    "torchvision::",
    *("_C::", "_C_cache_ops::", "_moe_C::", "_rocm_C::", "_vllm_fa2_C::", "_vllm_fa3_C::", "vllm::"),
    *("_C_custom_ar::", "_quickreduce::", "sglang::", "sgl_kernel::"),
    *("sgl_kernel::", "sglang::", "sglang_profiler::", "aiter::", "flash_attn_3::", "flashinfer::"),
    *("bitsandbytes::", "trtllm::", "tex_ts::", "primus_turbo::", "primus_turbo_cpp_extension::", "fbgemm::", "fb::"),
    *("trace::", "triton::"),  # kernels and nodes of autograd in traces
)
"""Ops of libraries and of torch's Python side, which register when those are imported, and what is in traces alone."""


@pytest.fixture
def my_op(restored_formulas):
    @formula("mylib::my_op")
    def my_formula(signature):
        return OpCost(vector_flops=7 * signature.outputs[0].numel)

    return "mylib::my_op"


def test_many_ops_are_known():
    assert len(list(registered())) >= 1_400


def test_every_name_is_an_op_of_torch():
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.nn.attention.varlen")  # registers its ops when it is imported
    known = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    unknown = [
        name for name in registered() if not name.startswith(FOREIGN) and name not in known and f"{name}_" not in known
    ]
    assert unknown == []


def test_unknown_op_is_uncosted():
    assert cost_of(op("mylib::nobody_knows", [spec((3,))])) == Uncosted("no formula")


def test_user_formula(my_op):
    assert cost(my_op, [spec((3,))], [spec((3,))]).vector_flops == 21
    assert my_op in registered()


def test_duplicates_are_refused(my_op):
    with pytest.raises(ValueError, match="already has a formula"):
        formula(my_op)(lambda _: OpCost())
    with pytest.raises(ValueError, match="already has a formula"):
        formula("mylib::other", "aten::mm")(lambda _: OpCost())
    assert find("mylib::other") is None


@pytest.mark.parametrize("name", ["mm", "aten::", "::mm", "aten::mm.out", ""])
def test_names_without_namespace_or_with_overload_are_refused(name):
    with pytest.raises(ValueError, match="op name"):
        formula(name)


def test_no_name_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        formula()


def test_in_place_variants_follow():
    assert find("aten::add_") is find("aten::add")
    assert find("aten::_foreach_add_") is find("aten::_foreach_add")
    assert find("mylib::add_") is None


def test_a_formula_that_cannot_read_a_signature_is_uncosted():
    found = cost_of(op("aten::mm", [spec((3,))]))
    assert isinstance(found, Uncosted)
    assert found.reason.startswith("formula failed: ValueError")


def test_dtypes_are_filled_in_from_the_first_floating_tensor():
    c = cost("aten::where", [spec((3,), "bool"), spec((3,), "bfloat16")], [spec((3,), "bfloat16")])
    assert c.vector_dtype == "bfloat16"
    assert cost("aten::add", [spec((3,), "int64")], [spec((3,), "int64")]).vector_dtype is None


def test_formulas_need_neither_torch_nor_numpy():
    program = (
        "import sys; from rooflight.costs.registry import registered; assert len(list(registered())) > 1000; "
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_traits_are_declared_and_without_any_an_op_runs_alone(restored_formulas):
    formula("mylib::plain")(lambda _: OpCost())
    formula("mylib::gate", fusable=True, error_group="gates")(lambda _: OpCost())
    assert traits_of(op("mylib::plain")) == Traits() == traits_of(op("nobody::knows"))
    assert traits_of(op("mylib::gate")) == traits_of(op("mylib::gate_")) == Traits(fusable=True, error_group="gates")
    assert traits_of(op("aten::mm")).product
    assert traits_of(op("aten::add_")) == traits_of(op("aten::add"))  # in-place variants follow
    assert traits_of(op("aten::gelu")).fusable  # registered through a table of rules


def test_traits_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="view"):
        formula("mylib::odd", view=True, fusable=True)
    with pytest.raises(ValueError, match="declare fusable too"):
        formula("mylib::odd", ends_chain=True)
    assert find("mylib::odd") is None


@pytest.mark.parametrize("module", ["matmul", "rooflight.costs.families.matmul", "mylib.ops"])
def test_the_module_that_registers_a_formula_changes_nothing(restored_formulas, module):
    source = """
from rooflight.costs import registry
from rooflight.costs.cost import OpCost
from rooflight.costs.registry import formula

@formula("mylib::scale", fusable=True)
def scale(op):
    return OpCost()
"""
    exec(source, ModuleType(module).__dict__)
    assert traits_of(op("mylib::scale")) == Traits(fusable=True)


def test_every_formula_of_ours_says_whose_errors_it_shares():
    ours = Traits().error_group
    assert [key for key, found in registry._formulas.items() if found.traits.error_group == ours] == []
    assert set(registered()) == {name for name, _ in registry._formulas}
