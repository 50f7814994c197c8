from __future__ import annotations

from dataclasses import replace

import numpy as np
from builders import op, spec
from sessions import Call, session_of

from rooflight.costs.cost import OpCost
from rooflight.costs.registry import cost_of, formula
from rooflight.records.record import StorageKind
from rooflight.records.session import KEPT, STOOD, Lifetimes
from rooflight.roofline.fusion.ops import op_fusion_of
from rooflight.roofline.fusion.regions import Fusion, fuse

X = spec((8, 8))  # 256 B
ROW = spec((8, 1))  # 32 B
EXP = op("aten::exp", {"self": X}, [X])
ADD = op("aten::add", {"self": X, "other": X}, [X])
SUM = op("aten::sum", {"self": X}, [ROW], dim=(1,), keepdim=True)
SUB_ROW = op("aten::sub", {"self": X, "other": ROW}, [X])
MM = op("aten::mm", {"self": X, "mat2": X}, [X])
VIEW = op("aten::view", {"self": X}, [spec((64,))])
ODD = op("nobody::knows", {"x": X}, [X])
ALIAS = spec((8, 8), storage=0)
ADD_IN_PLACE = op("aten::add_", {"self": ALIAS, "other": X}, [ALIAS])
B = 256


def fusion_of(*calls: tuple) -> Fusion:
    session = session_of([Call(op=signature, reads=reads, writes=writes) for signature, reads, writes in calls])
    return fuse(session, [cost_of(signature) for signature in session.signatures])


def moved(fusion: Fusion) -> list[tuple[int, int]]:
    return [(region.bytes_read, region.bytes_written) for region in fusion.regions]


def members(fusion: Fusion) -> list[list[int]]:
    return [region.records for region in fusion.regions]


def test_an_empty_session_has_no_regions():
    assert fusion_of() == Fusion(regions=(), bytes_in=0, bytes_out=0)


def test_a_chain_reads_what_enters_and_writes_what_leaves():
    # 0 -exp-> 1 -exp-> 2 -exp-> 3: only 0 is read and 3 written
    fusion = fusion_of((EXP, (0,), (1,)), (EXP, (1,), (2,)), (EXP, (2,), (3,)))
    assert members(fusion) == [[0, 1, 2]]
    assert fusion.regions[0].reads == {0: B}
    assert fusion.regions[0].writes == {3: B}
    assert (fusion.bytes_in, fusion.bytes_out) == (B, B)


def test_two_readers_of_one_tensor_read_it_once():
    assert moved(fusion_of((EXP, (0,), (1,)), (SUM, (0,), (2,)))) == [(B, B + 32)]


def test_a_gradient_that_is_kept_is_written_although_it_is_read():
    # 0 -exp-> 1 -exp-> 2; what else is left of 1 may be held by a cycle, or for a backward pass
    session = session_of(
        [Call(op=EXP, reads=(0,), writes=(1,)), Call(op=EXP, reads=(1,), writes=(2,))], storage_bytes=(B, B, B)
    )
    costs = [cost_of(signature) for signature in session.signatures]
    for kind, written in ((StorageKind.GRADIENT, 2 * B), (StorageKind.TEMPORARY, B), (StorageKind.ACTIVATION, B)):
        lifetimes = Lifetimes(
            kind=np.array([StorageKind.INPUT, kind, StorageKind.TEMPORARY], dtype=np.int8),
            made=np.array([STOOD, 0, 1], dtype=np.int32),
            freed=np.array([KEPT, KEPT, KEPT], dtype=np.int32),
            local=np.zeros(3, dtype=np.bool_),
        )
        assert moved(fuse(replace(session, lifetimes=lifetimes), costs)) == [(B, written)]


def test_readers_of_different_tensors_stay_apart():
    assert members(fusion_of((EXP, (0,), (2,)), (EXP, (1,), (3,)))) == [[0], [1]]


def test_a_reduction_and_its_broadcast_are_one_kernel():
    assert moved(fusion_of((SUM, (0,), (1,)), (SUB_ROW, (0, 1), (2,)))) == [(B, B)]


def test_counting_nonzeros_is_a_sum_and_finding_them_is_not():
    counting = op("aten::count_nonzero", {"self": X}, [spec((), "int64")])
    finding = op("aten::nonzero", {"self": X}, [spec((64, 2), "int64")])  # how many there are is data
    assert moved(fusion_of((EXP, (0,), (1,)), (counting, (1,), (2,)))) == [(B, 8)]
    assert members(fusion_of((EXP, (0,), (1,)), (finding, (1,), (2,)))) == [[0], [1]]


def test_a_product_takes_the_chain_that_follows_into_its_epilogue():
    fusion = fusion_of((MM, (0, 1), (2,)), (EXP, (2,), (3,)), (ADD, (3, 4), (5,)))
    assert members(fusion) == [[0, 1, 2]]
    assert fusion.regions[0].reads == {0: B, 1: B, 4: B}
    assert fusion.regions[0].writes == {5: B}


def test_what_a_product_reads_must_have_been_written():
    fusion = fusion_of((EXP, (0,), (1,)), (MM, (1, 2), (3,)))
    assert members(fusion) == [[0], [1]]
    assert moved(fusion) == [(B, B), (2 * B, B)]


def test_a_product_between_two_ops_keeps_them_apart():
    # exp -> mm -> add and exp -> add: one kernel for exp and add would wait for itself
    fusion = fusion_of((EXP, (0,), (1,)), (MM, (1, 2), (3,)), (ADD, (3, 1), (4,)))
    assert members(fusion) == [[0], [1, 2]]
    assert fusion.regions[0].writes == {1: B}
    assert fusion.regions[1].reads == {1: B, 2: B}
    assert fusion.regions[1].writes == {4: B}


def test_a_thin_product_is_no_more_than_a_pointwise_op_and_a_sum():
    column = spec((8, 1))
    thin = op("aten::mm", {"self": X, "mat2": column}, [column])
    assert moved(fusion_of((EXP, (0,), (1,)), (thin, (1, 2), (3,)))) == [(B + 32, 32)]


def test_what_backward_needs_is_written_once_and_read_by_each_region_that_needs_it():
    # two products end in chains that both need value 2, made by a product of its own
    fusion = fusion_of(
        (MM, (0, 1), (2,)), (EXP, (2,), (3,)), (MM, (3, 4), (5,)), (ADD, (5, 2), (6,)), (MM, (6, 7), (8,)),
        (ADD, (8, 2), (9,)),
    )  # fmt: skip
    assert [region.writes for region in fusion.regions] == [{3: B, 2: B}, {6: B}, {9: B}]
    assert [region.reads for region in fusion.regions] == [{0: B, 1: B}, {3: B, 4: B, 2: B}, {6: B, 7: B, 2: B}]


def test_several_values_computed_from_one_are_computed_again_rather_than_read():
    # 1, 2, 3 come from standing 0; after the product, reading 0 is cheaper than writing and reading all three
    fusion = fusion_of(
        (EXP, (0,), (1,)), (EXP, (1,), (2,)), (EXP, (2,), (3,)),
        (MM, (3, 4), (5,)), (ADD, (5, 1), (6,)), (ADD, (6, 2), (7,)),
    )  # fmt: skip
    first, second = fusion.regions
    assert (first.bytes_read, first.bytes_written) == (B, B)  # 0 read, 3 written for the product
    assert (second.bytes_read, second.bytes_written) == (3 * B, B)  # 3, 4 and one B for 1 and 2 together


def test_a_mask_made_from_nothing_is_made_again():
    ones = op("aten::ones", [], [X])
    fusion = fusion_of((ones, (), (1,)), (MM, (2, 3), (4,)), (ADD, (4, 1), (5,)))
    assert moved(fusion) == [(0, 0), (2 * B, B)]


def test_of_a_relu_backward_needs_a_byte_an_element():
    gradient = op("aten::threshold_backward", {"grad_output": X, "self": X}, [X])
    fusion = fusion_of((EXP, (0,), (1,)), (MM, (1, 2), (3,)), (gradient, (3, 1), (4,)))
    assert fusion.regions[1].reads == {1: B, 2: B}  # the product reads it whole anyway
    fusion = fusion_of((EXP, (0,), (1,)), (MM, (1, 2), (3,)), (MM, (3, 2), (4,)), (gradient, (4, 1), (5,)))
    assert fusion.regions[2].reads == {3: B, 2: B, 1: 64}


def test_a_result_is_written_though_nobody_reads_it():
    assert moved(fusion_of((EXP, (0,), (1,)))) == [(B, B)]


def test_what_an_op_returns_besides_its_result_and_nobody_reads_is_left_out():
    norm = op("aten::native_layer_norm", {"input": X}, [X, ROW, ROW], normalized_shape=(8,))
    assert moved(fusion_of((norm, (0,), (1, 2, 3)))) == [(B, B)]


def test_what_stood_before_and_is_updated_is_written_once_at_last():
    # w += g twice: the first sum stays inside
    fusion = fusion_of((ADD_IN_PLACE, (0, 1), (0,)), (ADD_IN_PLACE, (0, 1), (0,)))
    assert fusion.regions[0].reads == {0: B, 1: B}
    assert fusion.regions[0].writes == {0: B}
    assert (fusion.bytes_in, fusion.bytes_out) == (2 * B, B)


def test_an_updated_state_is_written_even_if_it_is_read_again():
    fusion = fusion_of((ADD_IN_PLACE, (0, 1), (0,)), (EXP, (0,), (2,)))
    assert fusion.regions[0].writes == {0: B, 2: B}


def test_what_the_step_made_may_be_changed_in_place_without_leaving():
    fusion = fusion_of((EXP, (0,), (1,)), (ADD_IN_PLACE, (1, 0), (1,)), (EXP, (1,), (2,)))
    assert moved(fusion) == [(B, B)]


def test_a_buffer_that_is_filled_is_not_read():
    copy = op("aten::copy_", {"self": ALIAS, "src": spec((8, 8), "bfloat16")}, [ALIAS])
    fusion = fusion_of((copy, (0, 1), (0,)))
    assert fusion.regions[0].reads == {1: 128}
    assert fusion.regions[0].writes == {0: B}


def test_a_scatter_ends_a_chain():
    table = spec((100, 8))
    scatter = op("aten::embedding_dense_backward", {"grad_output": X, "indices": spec((8,), "int64")}, [table])
    double = op("aten::exp", {"self": table}, [table])
    fusion = fusion_of((EXP, (0,), (1,)), (scatter, (1, 2), (3,)), (double, (3,), (4,)))
    assert members(fusion) == [[0, 1], [2]]
    assert fusion.regions[0].reads == {0: B, 2: 64}
    cost = cost_of(scatter)
    assert isinstance(cost, OpCost)
    assert fusion.regions[0].writes == {3: cost.bytes_written}
    assert fusion.regions[1].bytes_written == 3200


def test_an_op_without_a_cost_fuses_with_nothing_and_nothing_is_invented_for_it():
    fusion = fusion_of((EXP, (0,), (1,)), (ODD, (1,), (2,)), (EXP, (2,), (3,)))
    assert members(fusion) == [[0], [1], [2]]
    assert moved(fusion) == [(B, B), (0, 0), (B, B)]  # it takes 1 whole, and what it makes is read


def test_views_are_transparent():
    assert members(fusion_of((EXP, (0,), (1,)), (VIEW, (), ()), (EXP, (1,), (2,)))) == [[0, 2]]


def test_a_tensor_passed_twice_is_read_once():
    square = op("aten::mul", {"self": ALIAS, "other": ALIAS}, [X])
    assert moved(fusion_of((square, (0, 0), (1,)))) == [(B, B)]


def test_slices_of_one_storage_count_together():
    halves = [spec((8, 4), strides=(8, 1), storage=0), spec((8, 4), strides=(8, 1), storage=0, offset=4)]
    gate = op("aten::mul", {"self": halves[0], "other": halves[1]}, [spec((8, 4))])
    assert moved(fusion_of((gate, (0, 0), (1,)))) == [(B, 128)]


def test_a_record_whose_ids_do_not_match_its_tensors_moves_no_more_than_its_cost():
    for reads, writes in (((0,), (2,)), ((0, 1, 3), (2, 4)), ((), ())):
        fusion = fusion_of((ADD, reads, writes))
        assert sum(map(sum, moved(fusion))) <= 3 * B


def test_children_of_a_composite_are_left_to_it():
    session = session_of([Call(op=EXP, reads=(0,), writes=(1,), parent=1), Call(op=EXP, reads=(0,), writes=(1,))])
    assert members(fuse(session, [cost_of(EXP)])) == [[1]]


def test_what_a_composite_keeps_out_of_sight_is_no_input_of_the_step():
    # dropout's record names its result only; its mask, storage 2, was made by a part of it
    calls = [
        Call(op=EXP, reads=(0,), writes=(2,), parent=1),
        Call(op=EXP, reads=(0,), writes=(1,)),
        Call(op=ADD, reads=(1, 2), writes=(3,)),
    ]
    session = session_of(calls)
    fusion = fuse(session, [cost_of(signature) for signature in session.signatures])
    assert fusion.bytes_in == B
    assert moved(fusion) == [(B, B)]


def test_a_copy_onto_itself_leaves_what_was_written_before():
    copy = op("aten::copy_", {"self": ALIAS, "src": ALIAS}, [ALIAS])
    assert moved(fusion_of((ADD_IN_PLACE, (0, 1), (0,)), (copy, (0, 0), (0,)))) == [(2 * B, B)]


def test_an_output_without_a_storage_is_not_part_of_the_others():
    dropout = op("aten::native_dropout", {"input": X}, [X, spec((8, 8), "bool")], train=True)
    assert moved(fusion_of((dropout, (0,), (1,)))) == [(B, B)]  # no mask of 64 B
    fusion = fusion_of((dropout, (0,), (1,)), (MM, (1, 2), (3,)))
    assert fusion.regions[0].bytes_written == B


def test_each_output_of_a_foreach_op_depends_on_its_own_inputs():
    pairs = {"self": [X, ROW], "other": [X, ROW]}
    both = op("aten::_foreach_add", pairs, [X, ROW])
    # big = 0 + 2, small = 1 + 3; after a product, the small one alone is needed: 32 B written, 32 B read
    small = op("aten::sub", {"self": X, "other": ROW}, [X])
    fusion = fusion_of((both, (0, 1, 2, 3), (4, 5)), (MM, (4, 6), (7,)), (small, (7, 5), (8,)))
    assert fusion.regions[1].reads == {4: B, 6: B, 5: 32}


def test_a_chain_longer_than_python_can_recurse():
    length = 2000
    chain = [(EXP, (index,), (index + 1,)) for index in range(length)]
    fusion = fusion_of(*chain, (MM, (length, length), (length + 1,)), (ADD, (length + 1, length - 1), (length + 2,)))
    assert [len(region.records) for region in fusion.regions] == [length, 2]


def test_an_op_of_the_user_declared_fusable_is_part_of_a_chain(restored_formulas):
    def moves_both(signature):
        return OpCost(bytes_read=signature.input_bytes, bytes_written=signature.output_bytes)

    formula("mylib::alone")(moves_both)
    formula("mylib::gate", fusable=True)(moves_both)
    formula("mylib::spread", fusable=True, ends_chain=True)(moves_both)

    def regions(name):
        return moved(fusion_of((EXP, (0,), (1,)), (op(name, {"x": X}, [X]), (1,), (2,)), (EXP, (2,), (3,))))

    # three ops read and write 256 B each: apart, all of it moves; as one kernel only what enters and what leaves
    assert regions("mylib::alone") == [(B, B), (B, B), (B, B)]
    assert regions("mylib::gate") == [(B, B)]
    assert regions("mylib::spread") == [(B, B), (B, B)]  # the last op reads what was spread from memory


def test_a_product_of_the_user_takes_a_chain_into_its_epilogue_if_it_says_so(restored_formulas):
    def product(signature):
        # [8, 8] @ [8, 8]: 2 * 8 * 8 * 8 = 1024 FLOPs
        return OpCost(matrix_flops=1024, bytes_read=signature.input_bytes, bytes_written=signature.output_bytes)

    formula("mylib::mm", fusable=True)(product)
    formula("mylib::mm_with_epilogue", epilogue=True)(product)

    def regions(name):
        return moved(fusion_of((op(name, {"a": X, "b": X}, [X]), (0, 1), (2,)), (EXP, (2,), (3,))))

    assert regions("mylib::mm") == [(2 * B, B), (B, B)]
    assert regions("mylib::mm_with_epilogue") == [(2 * B, B)]


SOFTMAX = op("aten::_softmax", {"self": X}, [X], dim=1)
SOFTMAX_BACKWARD = op("aten::_softmax_backward_data", {"grad_output": X, "output": X}, [X])
LOG_SOFTMAX = op("aten::_log_softmax", {"self": X}, [X], dim=1)


def test_a_softmax_between_two_products_makes_attention_of_them():
    # q 0, k 1, v 2: scores 3 -scaled-> 4 -softmax-> 5, out 6
    fusion = fusion_of((MM, (0, 1), (3,)), (EXP, (3,), (4,)), (SOFTMAX, (4,), (5,)), (MM, (5, 2), (6,)))
    assert members(fusion) == [[0, 1, 2, 3]]
    assert moved(fusion) == [(3 * B, B)]
    assert fusion.attending == {0, 3}


def test_products_without_a_softmax_between_them_are_no_attention():
    for between in (EXP, LOG_SOFTMAX):
        fusion = fusion_of((MM, (0, 1), (3,)), (between, (3,), (4,)), (MM, (4, 2), (5,)))
        assert moved(fusion) == [(2 * B, B), (2 * B, B)]
        assert fusion.attending == set()


def test_weights_that_are_copied_to_what_stood_before_are_stored_there():
    copy = op("aten::copy_", {"self": ALIAS, "src": X}, [ALIAS])
    fusion = fusion_of((MM, (0, 1), (3,)), (SOFTMAX, (3,), (4,)), (copy, (7, 4), (7,)), (MM, (4, 2), (5,)))
    assert fusion.bytes_out == 2 * B
    assert sum(written for _, written in moved(fusion)) == 2 * B


def test_attention_whose_values_come_later_stores_no_weights_either():
    # the values are a product of two stages more than the weights: another kernel, to which no weights move
    fusion = fusion_of(
        (MM, (0, 1), (3,)), (SOFTMAX, (3,), (4,)), (MM, (0, 0), (5,)), (MM, (5, 5), (6,)), (MM, (4, 6), (7,))
    )
    assert members(fusion) == [[0, 1], [2], [3], [4]]
    assert moved(fusion) == [(2 * B, 0), (B, B), (B, B), (B, B)]


def test_the_backward_of_attention_makes_weights_again():
    # forward as above; grad 7 of out: dP 8 = grad v, dS 9, dq 10 = dS k, dv 11 = P grad
    fusion = fusion_of(
        (MM, (0, 1), (3,)),
        (SOFTMAX, (3,), (4,)),
        (MM, (4, 2), (5,)),
        (MM, (7, 2), (8,)),
        (SOFTMAX_BACKWARD, (8, 4), (9,)),
        (MM, (9, 1), (10,)),
        (MM, (4, 7), (11,)),
    )
    stored = {storage for region in fusion.regions for storage in region.writes}
    assert stored == {5, 10, 11}  # neither scores nor weights nor their gradients
    assert fusion.attending == {0, 2, 3, 5, 6}


def local_fusion(calls: list[Call], local: set[int]) -> Fusion:
    session = session_of(calls)
    count = len(session.storage_bytes)
    lifetimes = Lifetimes(
        kind=np.full(count, StorageKind.TEMPORARY, dtype=np.int8),
        made=np.zeros(count, dtype=np.int32),
        freed=np.full(count, len(calls), dtype=np.int32),
        local=np.isin(np.arange(count), list(local)),
    )
    return fuse(replace(session, lifetimes=lifetimes), [cost_of(signature) for signature in session.signatures])


def test_what_nobody_can_have_read_is_left_out_with_all_that_leads_to_it():
    # 1 is read by 2, which is dead; 3 is the result
    calls = [Call(op=MM, reads=(0, 0), writes=(1,)), Call(op=SUM, reads=(1,), writes=(2,)),
             Call(op=EXP, reads=(0,), writes=(3,))]  # fmt: skip
    assert members(local_fusion(calls, {1, 2})) == [[2]]
    assert local_fusion(calls, {1, 2}).bytes_out == B
    assert members(local_fusion(calls, {2})) == [[0], [2]]  # the caller has 1
    assert members(local_fusion(calls, {1})) == [[0, 1], [2]]
    assert members(local_fusion(calls, set())) == [[0, 1], [2]]


def test_what_is_written_in_parts_is_needed_whole():
    # 1 is made, written to in place, and read by the result
    calls = [Call(op=EXP, reads=(0,), writes=(1,)), Call(op=ADD_IN_PLACE, reads=(1, 0), writes=(1,)),
             Call(op=MM, reads=(1, 1), writes=(2,))]  # fmt: skip
    assert members(local_fusion(calls, {1})) == [[0, 1], [2]]
    assert members(local_fusion([*calls[:2], Call(op=MM, reads=(0, 0), writes=(2,))], {1})) == [[2]]


def test_ops_that_nobody_knows_or_that_change_what_stood_are_never_dead():
    calls = [Call(op=ODD, reads=(0,), writes=(1,)), Call(op=ADD_IN_PLACE, reads=(2, 0), writes=(2,))]
    assert members(local_fusion(calls, {1})) == [[0], [1]]


def test_of_an_out_tensor_nothing_is_read_whatever_of_the_others_is():
    # 36 of 64 elements lie on or below the diagonal; the rest of x and all of out are left out
    lower = op("aten::tril", {"self": X, "out": ALIAS}, [ALIAS])
    assert op_fusion_of(lower, cost_of(lower)).read == (4 * 36, 0)
    # 64 B of x are picked by 16 B of indices; as many bytes as x has are left out of neither
    picked = spec((2, 8), storage=0)
    pick = op("aten::index_select", {"self": spec((2, 8)), "index": spec((2,), "int64"), "out": picked}, [picked])
    assert op_fusion_of(pick, cost_of(pick)).read == (64, 16, 0)
