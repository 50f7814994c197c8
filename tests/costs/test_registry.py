import subprocess
import sys

import pytest
import torch.distributed._functional_collectives  # noqa: F401 - registers its ops
from builders import cost, op, spec

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import cost_of, family_of, find, formula, registered, unregister

FOREIGN = ("flash_attn::", "rooflight::", "higher_order::", "fsdp::", "torch_nn::", "quantized_decomposed::")
"""Ops of libraries and of torch's Python side, which register when those are imported."""


@pytest.fixture
def my_op():
    @formula("mylib::my_op")
    def my_formula(signature):
        return OpCost(vector_flops=7 * signature.outputs[0].numel)

    yield "mylib::my_op"
    unregister("mylib::my_op")


def test_many_ops_are_known():
    assert len(list(registered())) >= 1_400


def test_every_name_is_an_op_of_torch():
    torch = pytest.importorskip("torch")
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


def test_unregistering_forgets(my_op):
    unregister(my_op)
    assert find(my_op) is None
    with pytest.raises(KeyError):
        unregister(my_op)
    formula(my_op)(lambda _: OpCost())


def test_built_in_formulas_can_be_replaced():
    original = find("aten::mm")
    assert original is not None
    unregister("aten::mm")
    try:
        formula("aten::mm")(lambda _: OpCost(matrix_flops=1, matrix_dtype="float32"))
        assert cost("aten::mm").matrix_flops == 1
        unregister("aten::mm")
    finally:
        formula("aten::mm")(original)


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


def test_a_formula_knows_its_family_whoever_registers_it():
    assert family_of("aten::mm") == "matmul"
    assert family_of("aten::add_") == "pointwise"
    assert family_of("aten::gelu") == "activation"  # registered through a table of rules
    assert family_of("nobody::knows") is None
    original = find("aten::mm")
    unregister("aten::mm")
    formula("aten::mm")(original)
    assert family_of("aten::mm") == "matmul"
    formula("mylib::own")(lambda op: OpCost())
    assert family_of("mylib::own") == "foreign"
    unregister("mylib::own")
