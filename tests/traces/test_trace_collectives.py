"""Collectives in traces: the same costs as those of a live recording, with the group that the trace names."""

import pytest
from kineto_traces import kernel, launch, op, ran, span

import rooflight as rl
from rooflight.costs.registry import cost_of
from rooflight.sources.traces.file.trace import CollectiveArgs
from rooflight.sources.traces.ops.collectives import Groups, annotated_collective, described_collective

NO_GROUPS = Groups(0, {})


def described(name, sent, received=None, ranks=4):
    return CollectiveArgs(name, "BFloat16", (sent, received or sent), "7", ranks, str(list(range(ranks))))


def test_an_all_reduce_costs_what_a_live_one_costs_and_what_lacks_something_is_no_collective():
    found = described_collective(described("allreduce", 1000), NO_GROUPS)
    assert found.name == "c10d::allreduce_"
    assert dict(found.attributes) == {"group_size": 4, "group_ranks": (0, 1, 2, 3), "group_name": "7"}
    cost = cost_of(found)
    # 1000 numbers of 2 bytes, read and written; a ring of 4 sends 2 * 3/4 of them
    assert (cost.bytes_read, cost.bytes_written, cost.bytes_sent) == (2000, 2000, 3000)
    for odd in (("wait", 5), ("allreduce", -1), ("new_collective", 5)):
        assert described_collective(described(*odd), NO_GROUPS) is None


@pytest.mark.parametrize(
    ("name", "sent", "received", "bytes_sent"),
    [
        ("_allgather_base", 100, 400, 600),  # S = 800 bytes gathered, 3/4 of them
        ("all_gather", 100, 400, 600),
        ("_reduce_scatter_base", 400, 100, 600),
        ("all_to_all", 400, 400, 600),
        ("broadcast", 100, 100, 200),
        ("send", 100, 100, 200),
    ],
)
def test_each_kind_sends_what_it_must(name, sent, received, bytes_sent):
    assert cost_of(described_collective(described(name, sent, received), NO_GROUPS)).bytes_sent == bytes_sent


def test_an_annotation_is_of_the_world_where_no_groups_are_listed():
    world = Groups.of({"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}})
    found = annotated_collective("nccl:all_reduce", (100,), "float32", world)
    assert cost_of(found).bytes_sent == 400 * 2 * 7 // 8
    unknown = annotated_collective("nccl:all_reduce", (100,), "float32", NO_GROUPS)
    assert cost_of(unknown).reason == "group size unknown"


def test_several_groups_of_one_set_of_ranks_are_one():
    listed = [{"pg_name": str(n), "pg_size": 2, "ranks": [0, 1]} for n in range(3)]
    alone = {"pg_name": "9", "pg_size": 1, "ranks": [0]}
    assert Groups.of({"distributedInfo": {"pg_config": [*listed, alone]}}).only.size == 2
    other = {"pg_name": "8", "pg_size": 2, "ranks": [2, 3]}
    assert Groups.of({"distributedInfo": {"pg_config": [*listed, other]}}).only is None
    assert Groups.of({"distributedInfo": [1]}).only is None


def test_a_trace_has_one_record_for_each_collective(read):
    params = op("record_param_comms", 2, 9, Collective_name="allreduce", dtype="Float", Group_size=8)
    params["args"] |= {
        "In msg nelems": 250, "Out msg nelems": 250,
        "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
    }  # fmt: skip
    reduced = op("c10d::allreduce_", 0, 10, dims=[[[250]], []], types=["TensorList", ""])
    (one,) = read(reduced, params, launch(5, 1), kernel(20, 60, 1, name="ncclDevKernel")).records
    assert one.signature.name == "c10d::allreduce_"
    assert one.signature.inputs[0].dtype == "float32"
    assert cost_of(one.signature).bytes_sent == 1000 * 2 * 7 // 8


def annotated(name, dims):
    annotation = span(name, 3, 8)
    annotation["args"] |= {"Input Dims": [dims], "Input type": ["float"]}
    return [op("record_param_comms", 2, 9), annotation, launch(5, 1), kernel(20, 60, 1)]


def test_an_old_trace_has_the_sizes_of_its_annotations(read):
    (one,) = read(*annotated("nccl:all_to_all", [8, 16]), distributedInfo={"world_size": 8}).records
    assert one.signature.name == "c10d::alltoall_base_"
    assert cost_of(one.signature).bytes_sent == 8 * 16 * 4 * 7 // 8


def test_the_sizes_of_an_old_gather_show_the_number_of_its_ranks(read):
    # 2 of 8 ranks gather: 100 numbers of this rank, 200 of both
    gather = op("c10d::_allgather_base_", 0, 10, dims=[[200], [100], [], [], []], types=["float", "float", "", "", ""])
    session = read(gather, *annotated("nccl:_all_gather_base", [100]), distributedInfo={"world_size": 8})
    (one,) = session.records
    assert dict(one.signature.attributes)["group_size"] == 2
    assert cost_of(one.signature).bytes_sent == 400  # S = 800 bytes, half of them
    assert any("counts as one of all 8 ranks" in note for note in session.notes)


def test_a_reduction_in_switches_is_of_the_only_group(read):
    groups = {"pg_config": [{"pg_name": "0", "pg_size": 8, "ranks": list(range(8))}]}
    described = {"dims": [[100], [], []], "types": ["c10::BFloat16", "", ""]}
    session = read(
        *ran("symm_mem::multimem_all_reduce_", by="multimem_all_reduce_kernel", **described), distributedInfo=groups
    )
    (one,) = session.records
    assert one.signature.name == "symm_mem::multimem_all_reduce_"
    # the switches add: each of the 200 bytes leaves a rank once, not 2 * 7/8 times
    assert cost_of(one.signature).bytes_sent == 200
    # the table of collectives bounds it as that of ops does: 200 B at 450 GB/s a direction, 444 ps
    analysis = rl.analyze(session, "H100-SXM5-80GB")
    (row,) = analysis.communication.collectives
    assert row.bound_s == pytest.approx(200 / 450e9)
    assert row.bound_s == pytest.approx(analysis.totals.op_bound_s)


@pytest.mark.parametrize(
    ("name", "shapes", "bytes_sent"),
    [
        ("vllm::all_reduce", [[100], []], 2 * 200 * 3 // 4),
        ("_C_custom_ar::all_reduce", [[], [100], [100], [], []], 2 * 200 * 3 // 4),
        ("vllm::all_gather", [[100], [], []], 800 * 3 // 4),
        ("vllm::reduce_scatter", [[400], [], []], 800 * 3 // 4),
        ("symm_mem::one_shot_all_reduce_copy_out", [[500], [100], [], [], [100]], 2 * 200 * 3 // 4),
        ("symm_mem::reduce_scatter_out", [[400], [], [], [100]], 800 * 3 // 4),
        ("symm_mem::multimem_all_gather_out", [[100], [], [400]], 800 * 3 // 4),
        ("symm_mem::nvshmem_broadcast", [[100], [], []], 200),
    ],
)
def test_collectives_of_engines(read, name, shapes, bytes_sent):
    described = {"dims": shapes, "types": ["c10::BFloat16" if shape else "Scalar" for shape in shapes]}
    ranks = {"distributedInfo": {"world_size": 4}}
    (found,) = read(*ran(name, by="cross_device_reduce_1stage", **described), **ranks).signatures
    assert found.name.startswith("c10d::")
    assert cost_of(found).bytes_sent == bytes_sent
    # what lies around a collective of torch's is none itself
    inner = op("c10d::allreduce_", 1, 9, dims=[[[100]], []], types=["TensorList", ""])
    around = op(name, 0, 10, **described)
    inside = op("record_param_comms", 2, 8, Collective_name="allreduce", dtype="BFloat16", Group_size=4)
    inside["args"] |= {"In msg nelems": 100, "Out msg nelems": 100}
    work = [launch(5, 1), kernel(20, 60, 1, name="ncclDevKernel")]
    (one,) = read(around, inner, inside, *work, **ranks).records
    assert one.signature.name == "c10d::allreduce_" or name.startswith("symm_mem::")  # which call none of torch's
    # what else such an op launches is no collective
    assert read(*ran(name, by="copy", **described), **ranks).signatures[0].name == name
