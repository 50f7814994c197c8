from dataclasses import replace

import numpy as np
import pytest
from builders import op, spec
from sessions import Call, session_of

from rooflight.costs.cost import OpCost
from rooflight.costs.registry import cost_of, formula
from rooflight.records.record import StorageKind
from rooflight.records.session import KEPT, STOOD, Lifetimes
from rooflight.roofline.fusion.graph import OpGraph
from rooflight.roofline.fusion.ops import op_fusion_of, touched_by
from rooflight.roofline.fusion.regions import Fusion, _Traffic, fuse

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


def test_records_without_storages_are_regions_of_their_own_as_the_graph_has_them():
    listed = [EXP, MM, VIEW, ODD, SUM, MM, EXP]
    session = session_of([Call(op=signature) for signature in listed])
    costs = [cost_of(signature) for signature in session.signatures]
    fusions = [op_fusion_of(signature, cost) for signature, cost in zip(session.signatures, costs, strict=True)]
    slow = _Traffic(OpGraph(session, fusions, session.counted, {}, {}, {})).regions({})
    fast = fuse(session, costs)
    assert tuple(fast.regions) == slow == tuple(fast.regions[:])
    records, sizes, read, written = Fusion(regions=slow, bytes_in=0, bytes_out=0).columns()
    for mine, other in zip(fast.columns(), (records, sizes, read, written), strict=True):
        assert mine.tolist() == other.tolist()
    assert records.tolist() == [0, 1, 3, 4, 5, 6]  # a view runs no kernel


HALVES = [spec((8, 4), strides=(8, 1), storage=0), spec((8, 4), strides=(8, 1), storage=0, offset=4)]
COLUMN = spec((8, 1))
THIN = op("aten::mm", {"self": X, "mat2": COLUMN}, [COLUMN])
ONES = op("aten::ones", [], [X])
RELU_BACKWARD = op("aten::threshold_backward", {"grad_output": X, "self": X}, [X])
NORM = op("aten::native_layer_norm", {"input": X}, [X, ROW, ROW], normalized_shape=(8,))
FILL = op("aten::copy_", {"self": ALIAS, "src": spec((8, 8), "bfloat16")}, [ALIAS])
COPY = op("aten::copy_", {"self": ALIAS, "src": X}, [ALIAS])
SELF_COPY = op("aten::copy_", {"self": ALIAS, "src": ALIAS}, [ALIAS])
SQUARE = op("aten::mul", {"self": ALIAS, "other": ALIAS}, [X])
GATE = op("aten::mul", {"self": HALVES[0], "other": HALVES[1]}, [spec((8, 4))])
DROPOUT = op("aten::native_dropout", {"input": X}, [X, spec((8, 8), "bool")], train=True)
BOTH = op("aten::_foreach_add", {"self": [X, ROW], "other": [X, ROW]}, [X, ROW])
COUNT = op("aten::count_nonzero", {"self": X}, [spec((), "int64")])
FIND = op("aten::nonzero", {"self": X}, [spec((64, 2), "int64")])  # how many there are is data
SOFTMAX = op("aten::_softmax", {"self": X}, [X], dim=1)
SOFTMAX_BACKWARD = op("aten::_softmax_backward_data", {"grad_output": X, "output": X}, [X])
LOG_SOFTMAX = op("aten::_log_softmax", {"self": X}, [X], dim=1)
IN_PLACE_TWICE = ((ADD_IN_PLACE, (0, 1), (0,)), (ADD_IN_PLACE, (0, 1), (0,)))

# calls of signature, storages read and written; then of each region the records, and bytes by storage read and written
REGIONS: dict[str, tuple[tuple, list[tuple[list[int], dict[int, int], dict[int, int]]]]] = {
    "nothing": ((), []),
    "a result is written though nobody reads it": (((EXP, (0,), (1,)),), [([0], {0: B}, {1: B})]),
    "of a chain what enters is read and what leaves written": (
        ((EXP, (0,), (1,)), (EXP, (1,), (2,)), (EXP, (2,), (3,))),
        [([0, 1, 2], {0: B}, {3: B})],
    ),
    "two readers of one tensor read it once": (
        ((EXP, (0,), (1,)), (SUM, (0,), (2,))),
        [([0, 1], {0: B}, {1: B, 2: 32})],
    ),
    "readers of different tensors stay apart": (
        ((EXP, (0,), (2,)), (EXP, (1,), (3,))),
        [([0], {0: B}, {2: B}), ([1], {1: B}, {3: B})],
    ),
    "a reduction and its broadcast": (((SUM, (0,), (1,)), (SUB_ROW, (0, 1), (2,))), [([0, 1], {0: B}, {2: B})]),
    "counting nonzeros is a sum": (((EXP, (0,), (1,)), (COUNT, (1,), (2,))), [([0, 1], {0: B}, {2: 8})]),
    "finding them is not": (
        ((EXP, (0,), (1,)), (FIND, (1,), (2,))),
        [([0], {0: B}, {1: B}), ([1], {1: B}, {2: 64 * 16})],
    ),
    "a product takes the chain that follows into its epilogue": (
        ((MM, (0, 1), (2,)), (EXP, (2,), (3,)), (ADD, (3, 4), (5,))),
        [([0, 1, 2], {0: B, 1: B, 4: B}, {5: B})],
    ),
    "what a product reads must have been written": (
        ((EXP, (0,), (1,)), (MM, (1, 2), (3,))),
        [([0], {0: B}, {1: B}), ([1], {1: B, 2: B}, {3: B})],
    ),
    # exp -> mm -> add and exp -> add: one kernel for exp and add would wait for itself
    "a product between two ops keeps them apart": (
        ((EXP, (0,), (1,)), (MM, (1, 2), (3,)), (ADD, (3, 1), (4,))),
        [([0], {0: B}, {1: B}), ([1, 2], {1: B, 2: B}, {4: B})],
    ),
    "a thin product is a pointwise op and a sum": (
        ((EXP, (0,), (1,)), (THIN, (1, 2), (3,))),
        [([0, 1], {0: B, 2: 32}, {3: 32})],
    ),
    # two products end in chains that both need value 2, made by a product of its own
    "what backward needs is written once and read by each region": (
        ((MM, (0, 1), (2,)), (EXP, (2,), (3,)), (MM, (3, 4), (5,)), (ADD, (5, 2), (6,)), (MM, (6, 7), (8,)),
         (ADD, (8, 2), (9,))),
        [([0, 1], {0: B, 1: B}, {2: B, 3: B}), ([2, 3], {3: B, 4: B, 2: B}, {6: B}),
         ([4, 5], {6: B, 7: B, 2: B}, {9: B})],
    ),
    "a mask made from nothing is made again": (
        ((ONES, (), (1,)), (MM, (2, 3), (4,)), (ADD, (4, 1), (5,))),
        [([0], {}, {}), ([1, 2], {2: B, 3: B}, {5: B})],
    ),
    "backward of a relu needs a byte an element": (
        ((EXP, (0,), (1,)), (MM, (1, 2), (3,)), (MM, (3, 2), (4,)), (RELU_BACKWARD, (4, 1), (5,))),
        [([0], {0: B}, {1: B}), ([1], {1: B, 2: B}, {3: B}), ([2, 3], {3: B, 2: B, 1: 64}, {5: B})],
    ),
    "unless a product reads it whole anyway": (
        ((EXP, (0,), (1,)), (MM, (1, 2), (3,)), (RELU_BACKWARD, (3, 1), (4,))),
        [([0], {0: B}, {1: B}), ([1, 2], {1: B, 2: B}, {4: B})],
    ),
    "further results that nobody reads are left out": (((NORM, (0,), (1, 2, 3)),), [([0], {0: B}, {1: B})]),
    # w += g twice: the first sum stays inside
    "an update is written once, at last": (IN_PLACE_TWICE, [([0, 1], {0: B, 1: B}, {0: B})]),
    "an updated state is written even if it is read again": (
        ((ADD_IN_PLACE, (0, 1), (0,)), (EXP, (0,), (2,))),
        [([0, 1], {0: B, 1: B}, {0: B, 2: B})],
    ),
    "what the step made may be changed in place without leaving": (
        ((EXP, (0,), (1,)), (ADD_IN_PLACE, (1, 0), (1,)), (EXP, (1,), (2,))),
        [([0, 1, 2], {0: B}, {2: B})],
    ),
    "a buffer that is filled is not read": (((FILL, (0, 1), (0,)),), [([0], {1: 128}, {0: B})]),
    # it takes 1 whole, and what it makes is read
    "for an op without a cost nothing is invented": (
        ((EXP, (0,), (1,)), (ODD, (1,), (2,)), (EXP, (2,), (3,))),
        [([0], {0: B}, {1: B}), ([1], {}, {}), ([2], {2: B}, {3: B})],
    ),
    "views are transparent": (
        ((EXP, (0,), (1,)), (VIEW, (), ()), (EXP, (1,), (2,))),
        [([0, 2], {0: B}, {2: B})],
    ),
    "a tensor passed twice is read once": (((SQUARE, (0, 0), (1,)),), [([0], {0: B}, {1: B})]),
    "slices of one storage count together": (((GATE, (0, 0), (1,)),), [([0], {0: B}, {1: 128})]),
    "a copy onto itself leaves what was written before": (
        ((ADD_IN_PLACE, (0, 1), (0,)), (SELF_COPY, (0, 0), (0,))),
        [([0], {0: B, 1: B}, {0: B})],
    ),
    # no mask of 64 B
    "an output without a storage is not part of the others": (
        ((DROPOUT, (0,), (1,)), (MM, (1, 2), (3,))),
        [([0], {0: B}, {1: B}), ([1], {1: B, 2: B}, {3: B})],
    ),
    # big = 0 + 2, small = 1 + 3; after a product, the small one alone is needed: 32 B written, 32 B read
    "each output of a foreach op depends on its own inputs": (
        ((BOTH, (0, 1, 2, 3), (4, 5)), (MM, (4, 6), (7,)), (SUB_ROW, (7, 5), (8,))),
        [([0], {0: B, 1: 32, 2: B, 3: 32}, {4: B, 5: 32}), ([1, 2], {4: B, 6: B, 5: 32}, {8: B})],
    ),
    # q 0, k 1, v 2: scores 3 -scaled-> 4 -softmax-> 5, out 6
    "a softmax between two products makes attention of them": (
        ((MM, (0, 1), (3,)), (EXP, (3,), (4,)), (SOFTMAX, (4,), (5,)), (MM, (5, 2), (6,))),
        [([0, 1, 2, 3], {0: B, 1: B, 2: B}, {6: B})],
    ),
    "another chain does not": (
        ((MM, (0, 1), (3,)), (EXP, (3,), (4,)), (MM, (4, 2), (5,))),
        [([0, 1], {0: B, 1: B}, {4: B}), ([2], {4: B, 2: B}, {5: B})],
    ),
    "nor does a log-softmax": (
        ((MM, (0, 1), (3,)), (LOG_SOFTMAX, (3,), (4,)), (MM, (4, 2), (5,))),
        [([0, 1], {0: B, 1: B}, {4: B}), ([2], {4: B, 2: B}, {5: B})],
    ),
    # the values are a product of two stages more than the weights: another kernel, to which no weights move
    "attention whose values come later stores no weights either": (
        ((MM, (0, 1), (3,)), (SOFTMAX, (3,), (4,)), (MM, (0, 0), (5,)), (MM, (5, 5), (6,)), (MM, (4, 6), (7,))),
        [([0, 1], {0: B, 1: B}, {}), ([2], {0: B}, {5: B}), ([3], {5: B}, {6: B}), ([4], {6: B}, {7: B})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REGIONS)
def test_regions_and_what_they_move(name: str) -> None:
    calls, expected = REGIONS[name]
    fusion = fusion_of(*calls)
    assert [(region.records, region.reads, region.writes) for region in fusion.regions] == expected


def test_compulsory_bytes_and_products_of_attention() -> None:
    update = fusion_of(*IN_PLACE_TWICE)
    assert (update.bytes_in, update.bytes_out) == (2 * B, B)
    attention = (MM, (0, 1), (3,)), (SOFTMAX, (3,), (4,)), (MM, (4, 2), (5,))
    assert fusion_of(*attention).attending == {0, 2}
    assert fusion_of(attention[0], (LOG_SOFTMAX, (3,), (4,)), attention[2]).attending == set()
    # weights that are copied to what stood before are stored there
    stored = fusion_of(*attention[:2], (COPY, (7, 4), (7,)), attention[2])
    assert stored.bytes_out == sum(written for _, written in moved(stored)) == 2 * B


def test_several_values_computed_from_one_are_computed_again_rather_than_read() -> None:
    # 1, 2, 3 come from standing 0; after the product, reading 0 is cheaper than writing and reading all three
    chain = (EXP, (0,), (1,)), (EXP, (1,), (2,)), (EXP, (2,), (3,))
    fusion = fusion_of(*chain, (MM, (3, 4), (5,)), (ADD, (5, 1), (6,)), (ADD, (6, 2), (7,)))
    # 0 read, 3 written for the product; 3, 4 and one B for 1 and 2 together
    assert moved(fusion) == [(B, B), (3 * B, B)]


def test_a_gradient_that_is_kept_is_written_although_it_is_read():
    # 0 -exp-> 1 -exp-> 2; what else is left of 1 may be held by a cycle, or for a backward pass
    session = session_of(
        [Call(op=EXP, reads=(0,), writes=(1,)), Call(op=EXP, reads=(1,), writes=(2,))], storage_bytes=(B, B, B)
    )
    costs = [cost_of(signature) for signature in session.signatures]
    for kind, written in ((StorageKind.GRADIENT, 2 * B), (StorageKind.TEMPORARY, B), (StorageKind.ACTIVATION, B)):
        lifetimes = Lifetimes(
            kind=np.array([StorageKind.DATA, kind, StorageKind.TEMPORARY], dtype=np.int8),
            made=np.array([STOOD, 0, 1], dtype=np.int32),
            freed=np.array([KEPT, KEPT, KEPT], dtype=np.int32),
            local=np.zeros(3, dtype=np.bool_),
            owner=np.zeros(3, dtype=np.int32),
        )
        assert moved(fuse(replace(session, lifetimes=lifetimes), costs)) == [(B, written)]


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
        owner=np.zeros(count, dtype=np.int32),
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


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [3, 0, 4], []])
def test_touched_storages_are_listed_in_batches(monkeypatch, order):
    monkeypatch.setattr("rooflight.roofline.fusion.ops._BATCH", 2)
    calls = [([n, 0], [n + 1]) if n % 2 else ([], [n + 1, n]) for n in range(5)]
    session = session_of([Call(op=EXP, reads=reads, writes=writes) for reads, writes in calls])
    expected = [(n, 0, *calls[n]) for n in order]
    assert [*touched_by(session, np.array(order, dtype=np.int64))] == expected
