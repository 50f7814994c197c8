from fractions import Fraction

import pytest
from builders import cost, op, spec
from hypothesis import given
from hypothesis import strategies as st

from rooflight.costs.cost import Uncosted
from rooflight.costs.registry import cost_of


def test_all_reduce():
    x = spec((100,), storage=0)
    c = cost("c10d::allreduce_", {"tensors": [x]}, [x], group_size=4)
    assert c.bytes_sent == 600  # 2 * 400 * 3 / 4
    assert (c.bytes_read, c.bytes_written) == (400, 400)
    assert c.vector_flops == 75  # 100 * 3 / 4


def test_functional_all_reduce():
    c = cost("_c10d_functional::all_reduce", {"input": spec((100,))}, [spec((100,))], group_size=8)
    assert c.bytes_sent == 700  # 2 * 400 * 7 / 8


@pytest.mark.parametrize(
    ("name", "source", "destination"),
    [
        ("_c10d_functional::all_gather_into_tensor", "input", None),
        ("c10d::_allgather_base_", "input_tensor", "output_tensor"),
        ("c10d::allgather_into_tensor_coalesced_", "inputs", "outputs"),
    ],
)
def test_all_gather_sends_all_but_its_own_part_of_what_is_gathered(name, source, destination):
    whole = spec((400,), storage=0)
    inputs = {source: spec((100,))} | ({destination: whole} if destination else {})
    c = cost(name, inputs, [] if name.endswith("coalesced_") else [whole], group_size=4)
    assert c.bytes_sent == 1_200  # 1600 * 3 / 4
    assert (c.bytes_read, c.bytes_written, c.vector_flops) == (400, 1_600, 0)


def test_all_gather_into_a_list():
    parts = [spec((100,), storage=place) for place in range(4)]
    c = cost("c10d::allgather_", {"output_tensors": parts, "input_tensors": spec((100,))}, parts, group_size=4)
    assert (c.bytes_sent, c.bytes_written) == (1_200, 1_600)


def test_reduce_scatter_sends_all_but_its_own_part_of_what_is_scattered():
    inputs = {"output_tensor": spec((100,), storage=0), "input_tensor": spec((400,))}
    c = cost("c10d::_reduce_scatter_base_", inputs, [spec((100,), storage=0)], group_size=4)
    assert c.bytes_sent == 1_200
    assert (c.bytes_read, c.bytes_written, c.vector_flops) == (1_600, 400, 300)


def test_all_to_all():
    inputs = {"output": spec((100,)), "input": spec((100,))}
    c = cost("c10d::alltoall_base_", inputs, group_size=4)
    assert (c.bytes_sent, c.bytes_read, c.bytes_written) == (300, 400, 400)


def test_broadcast_send_and_receive():
    x = spec((100,), storage=0)
    assert cost("c10d::broadcast_", {"tensors": [x]}, [x], group_size=4).bytes_sent == 400
    assert cost("c10d::broadcast_", {"tensors": [x]}, [x], group_size=1).bytes_sent == 0
    sent = cost("c10d::send", {"tensors": [x]})
    assert (sent.bytes_sent, sent.bytes_read, sent.bytes_written) == (400, 400, 0)
    received = cost("c10d::recv_", {"tensors": [x]})
    assert (received.bytes_sent, received.bytes_read, received.bytes_written) == (0, 0, 400)


def test_gather_and_scatter_send_a_part():
    parts = [spec((100,)), spec((100,))]
    c = cost("c10d::gather_", {"output_tensors": parts, "input_tensors": spec((100,))}, group_size=2)
    assert c.bytes_sent == 400
    c = cost("c10d::scatter_", {"output_tensors": spec((100,)), "input_tensors": parts}, group_size=2)
    assert c.bytes_sent == 400


def test_waiting_is_free():
    x = spec((100,), storage=0)
    assert cost("_c10d_functional::wait_tensor", {"tensor": x}, [x]).bytes_moved == 0
    assert cost("c10d::barrier", {"tensor": spec((1,))}).bytes_sent == 0


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
