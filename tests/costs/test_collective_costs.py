from fractions import Fraction

from builders import cost, op, spec
from cost_table import costs
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.cost import Uncosted
from rooflight.costs.registry import cost_of


def test_without_a_group_size_nothing_is_known():
    found = cost_of(op("c10d::allreduce_", {"tensors": [spec((100,))]}, [spec((100,))]))
    assert found == Uncosted("group size unknown")


@given(st.integers(1, 10_000), st.integers(1, 1024))
def test_all_reduce_is_reduce_scatter_and_all_gather(numel, ranks):
    x = spec((numel,), "bfloat16")
    both = cost("c10d::allreduce_", {"tensors": [x]}, [x], group_size=ranks).bytes_sent
    half = cost("_c10d_functional::reduce_scatter_tensor", {"input": x}, [x], group_size=ranks).bytes_sent
    assert 0 <= both - 2 * half <= 1  # each rounded down
    assert both <= Fraction(2 * x.nbytes * (ranks - 1), ranks)


test_costs = costs(
    """
    # all reduce: 2 * 400 * 3 / 4; 100 * 3 / 4
    c10d::allreduce_ tensors=100@0 -> 100@0 | group_size=4 = sent 600, read 400, written 400, vector 75
    # those of engines and of symmetric memory, live, with the names of their arguments: 2 * 400 * 3 / 4
    vllm::all_reduce tensor=100 -> 100 | group_size=4 = sent 600, read 400, written 400, vector 75
    sgl_kernel::all_reduce inp=100 out=100@0 -> | group_size=4 = sent 600, read 400, written 400
    symm_mem::one_shot_all_reduce_copy symm_buffer=900 local_input=100 -> 100 | group_size=4 = sent 600, read 400
    symm_mem::two_shot_all_reduce_out input=100 output=100@0 -> 100@0 | group_size=4 = sent 600, written 400
    # in switches each byte is sent once, and no rank adds
    symm_mem::multimem_one_shot_all_reduce input=100 -> 100 | group_size=4 = sent 400, vector 0
    vllm::reduce_scatter tensor=100 -> 25 | group_size=4 = sent 300, read 400, written 100, vector 75
    vllm::all_gather tensor=100 -> 400 | group_size=4 = sent 1200, read 400, written 1600
    symm_mem::multimem_all_gather_out input=100 out=400@0 -> 400@0 | group_size=4 = sent 1200, written 1600
    symm_mem::nvshmem_broadcast input=100@0 -> 100@0 | group_size=4 = sent 400
    # functional all reduce: 2 * 400 * 7 / 8
    _c10d_functional::all_reduce input=100 -> 100 | group_size=8 = sent 700
    # all gather sends all but its own part of what is gathered: 1600 * 3 / 4
    _c10d_functional::all_gather_into_tensor input=100 -> 400@0 | group_size=4 = sent 1200, read 400, written 1600,
        vector 0
    c10d::_allgather_base_ input_tensor=100 output_tensor=400@0 -> 400@0 | group_size=4 = sent 1200, read 400, written
        1600, vector 0
    c10d::allgather_into_tensor_coalesced_ inputs=100 outputs=400@0 -> | group_size=4 = sent 1200, read 400, written
        1600, vector 0
    # all gather into a list
    c10d::allgather_ output_tensors=100@0 output_tensors=100@1 output_tensors=100@2 output_tensors=100@3
        input_tensors=100 -> 100@0 100@1 100@2 100@3 | group_size=4 = sent 1200, written 1600
    # reduce scatter sends all but its own part of what is scattered
    c10d::_reduce_scatter_base_ output_tensor=100@0 input_tensor=400 -> 100@0 | group_size=4 = sent 1200, read 1600,
        written 400, vector 300
    # all to all
    c10d::alltoall_base_ output=100 input=100 -> | group_size=4 = sent 300, read 400, written 400
    # broadcast send and receive
    c10d::broadcast_ tensors=100@0 -> 100@0 | group_size=4 = sent 400
    c10d::broadcast_ tensors=100@0 -> 100@0 | group_size=1 = sent 0
    c10d::send tensors=100@0 -> = sent 400, read 400, written 0
    c10d::recv_ tensors=100@0 -> = sent 0, read 0, written 400
    # gather and scatter send a part
    c10d::gather_ output_tensors=100 output_tensors=100 input_tensors=100 -> | group_size=2 = sent 400
    c10d::scatter_ output_tensors=100 input_tensors=100 input_tensors=100 -> | group_size=2 = sent 400
    # waiting is free
    _c10d_functional::wait_tensor tensor=100@0 -> 100@0 = moved 0
    c10d::barrier tensor=1 -> = sent 0
    """
)
