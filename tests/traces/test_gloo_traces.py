"""Traces of programs on several ranks, which talk over gloo: real ones, of two processes."""

import time
from pathlib import Path

import forked_ranks
import pytest

import rooflight as rl

LATE_S, ROUNDS = 0.2, 3


def run(rank: int, world: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile

    x = torch.ones(64, 64)
    dist.all_reduce(x.clone())
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        for turn in range(ROUNDS):
            y, entered = x @ x, folder / f"entered{turn}"
            if rank == 1:  # comes when rank 0 is there for long
                while not entered.exists():
                    time.sleep(0.001)
                time.sleep(LATE_S)
            work = dist.all_reduce(y, async_op=True)
            entered.touch()
            work.wait()
    found.export_chrome_trace(f"{folder}/rank{rank}.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("ranks")
    forked_ranks.start(Path(__file__), found, [2])
    return found


def test_the_trace_says_its_rank(folder):
    environment = rl.read_trace(folder / "rank1.json").environment
    assert {key: environment[key] for key in ("rank", "world_size", "backend")} == {
        "rank": "1",
        "world_size": "2",
        "backend": "gloo",
    }


def test_a_collective_takes_what_gloos_thread_takes(folder):
    sums = [one for one in rl.read_trace(folder / "rank0.json").records if one.signature.name == "c10d::allreduce_"]
    assert [one.signature.attributes for one in sums] == [(("group_size", 2), ("group_ranks", (0, 1)))] * 3
    assert [one.signature.inputs[0].shape for one in sums] == [(64 * 64,)] * 3
    assert max(one.times_s[0] for one in sums) > LATE_S / 2  # rank 1 came that late


if __name__ == "__main__":
    forked_ranks.main(run)
