"""Collectives, DDP, FSDP2 and DTensor, recorded in two gloo processes."""

import json
from pathlib import Path
from typing import Any

import forked_ranks
import pytest


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two processes recorded, by program."""
    folder = tmp_path_factory.mktemp("ranks")
    # as torchrun says it on two nodes of one rank each
    forked_ranks.start(Path(__file__).with_name("distributed_worker.py"), folder, [2], LOCAL_WORLD_SIZE="1")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_collectives_are_seen_with_the_size_of_their_group(found: list[dict[str, Any]]) -> None:
    seen = [
        (op["name"], op["attributes"].get("group_size"))
        for op in found[0]["collectives"]["ops"]
        if op["name"].startswith(("c10d", "_c10d")) and "_wrap_tensor" not in op["name"]
    ]
    assert seen == [
        ("c10d::allreduce_", 2),
        ("c10d::broadcast_", 2),
        ("c10d::_allgather_base_", 2),
        ("c10d::_reduce_scatter_base_", 2),
        ("c10d::alltoall_base_", 2),
        ("c10d::allgather_", 2),
        ("c10d::allreduce_", 1),  # the same tensor, in a group of one
        ("_c10d_functional::all_reduce", 2),
        ("_c10d_functional::wait_tensor", None),
        ("_c10d_functional::all_gather_into_tensor", 2),
        ("_c10d_functional::wait_tensor", None),
        ("_c10d_functional::reduce_scatter_tensor", 2),
        ("_c10d_functional::wait_tensor", None),
        ("c10d::send", 2),
        ("c10d::barrier", 2),
    ]
    assert ("c10d::recv_", 2) in [
        (op["name"], op["attributes"].get("group_size")) for op in found[1]["collectives"]["ops"]
    ]


def test_collectives_are_seen_with_the_nodes_that_their_group_is_on(found: list[dict[str, Any]]) -> None:
    ops = [op for op in found[0]["collectives"]["ops"] if "group_size" in op["attributes"]]
    assert {op["attributes"].get("group_nodes") for op in ops if op["attributes"]["group_size"] == 2} == {2}
    assert {op["attributes"].get("group_nodes") for op in ops if op["attributes"]["group_size"] == 1} == {None}


def test_every_collective_has_a_cost(found: list[dict[str, Any]]) -> None:
    assert [one["collectives"]["uncosted"] for one in found] == [[], []]
    assert all(one[name]["bytes_sent"] > 0 for one in found for name in ("collectives", "ddp", "fsdp", "dtensor"))


def test_ddp_attributes_modules_in_backward_and_reduces_once(found: list[dict[str, Any]]) -> None:
    ops = found[0]["ddp"]["ops"]
    assert [op["module"] for op in ops if op["name"] == "aten::addmm"] == ["module.up", "module.down"]
    assert [op["module"] for op in ops if op["name"] == "aten::mm"] == ["module.down"] * 2 + ["module.up"]
    assert {op["direction"] for op in ops if op["name"] == "aten::mm"} == {"backward"}
    (reduction,) = [op for op in ops if op["name"] == "c10d::allreduce_"]
    # 8 * 16 + 16 + 16 * 8 + 8 gradients
    assert reduction["bytes"] == 280 * 4
    assert reduction["direction"] == "backward"


def test_fsdp_gathers_and_scatters_in_its_modules(found: list[dict[str, Any]]) -> None:
    ops = found[0]["fsdp"]["ops"]
    assert [op["module"] for op in ops if op["name"] == "aten::addmm"] == ["up", "down"]
    gathers = [op for op in ops if "allgather" in op["name"]]
    scatters = [op for op in ops if "reduce_scatter" in op["name"]]
    assert {op["direction"] for op in gathers} == {"forward", "backward"}
    assert len(scatters) == 2
    assert {op["direction"] for op in scatters} == {"backward"}
    assert any(op["direction"] == "optimizer" and "_foreach" in op["name"] for op in ops)
    assert {op["attributes"].get("group_size") for op in (*gathers, *scatters)} == {2}


@pytest.mark.parametrize("name", ["first dtensor", "dtensor"])
def test_dtensor_is_recorded_by_its_local_parts(found: list[dict[str, Any]], name: str) -> None:
    """The first time, DTensor runs each op on fake tensors too, which is no work of the program."""
    ops = found[0][name]["ops"]
    (mm,) = [op for op in ops if op["name"] == "aten::mm"]
    assert mm["bytes"] == (4 * 8 + 8 * 8) * 4  # half of the left side, all of the right
    assert any("all_gather" in op["name"] for op in ops)


def test_parameters_that_are_dtensors_do_not_hide_what_was_written_outside(found: list[dict[str, Any]]) -> None:
    assert found[0]["beside dtensors"] == ["rooflight::written_outside"]
