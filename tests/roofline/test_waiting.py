"""Who waits for whom: in each collective the rank with the shortest time arrived last."""

import numpy as np
import pytest
from builders import op, spec
from hypothesis import given
from hypothesis import strategies as st
from sessions import Call, session_of

from rooflight.devices import get
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.ranks import merge, ranks_report
from rooflight.roofline.waiting import Waiting, waiting_of

H100 = get("H100-SXM5-80GB")
X, Y = spec((1000,)), spec((2000,))
ADD = op("aten::add", {"self": X, "other": X}, [X])


def reduce(*ranks, of=X, size=0):
    known = {"group_ranks": ranks} if ranks else {}
    return op("c10d::allreduce_", {"tensors": [of]}, [of], group_size=size or len(ranks), **known)


def rank_of(calls, *times):
    return session_of([Call(op=each) for each in calls], times=times)


def pairs(waiting):
    return {(wait.rank, wait.for_rank): pytest.approx(wait.seconds) for wait in waiting.waits}


def test_each_waits_for_the_rank_that_arrives_last():
    # three collectives of three ranks: rank 2 arrives last in the first and the third, rank 0 in the second
    everybody = reduce(0, 1, 2)
    calls = [everybody] * 3
    waiting = waiting_of(
        {0: rank_of(calls, [5, 1, 9]), 1: rank_of(calls, [4, 3, 7]), 2: rank_of(calls, [2, 2, 6])}, world_size=3
    )
    assert pairs(waiting) == {(0, 2): 3 + 3, (1, 2): 2 + 1, (1, 0): 2, (2, 0): 1}
    assert (waiting.collectives, waiting.unmatched) == (3, 0)
    by_rank = {each.rank: each for each in waiting.by_rank}
    assert [by_rank[rank].waits_s for rank in range(3)] == [6, 5, 1]
    assert [by_rank[rank].others_wait_s for rank in range(3)] == [3, 0, 9]
    assert [by_rank[rank].last_in for rank in range(3)] == [1, 0, 2]
    assert (by_rank[1].longest_for, by_rank[1].longest_s) == (2, 3)
    assert waiting.last.rank == 2


def test_ranks_wait_within_their_groups():
    # two groups of two: 0 with 2, 1 with 3
    sessions = {
        0: rank_of([reduce(0, 2)], [3]),
        2: rank_of([reduce(0, 2)], [1]),
        1: rank_of([reduce(1, 3)], [1]),
        3: rank_of([reduce(1, 3)], [5]),
    }
    assert pairs(waiting_of(sessions, 4)) == {(3, 1): 4, (0, 2): 2}


def test_a_group_of_the_worlds_size_is_the_world():
    calls = [reduce(size=2)]
    assert pairs(waiting_of({0: rank_of(calls, [3]), 1: rank_of(calls, [1])}, 2)) == {(0, 1): 2}


def test_waits_are_those_of_a_step():
    calls = [reduce(0, 1)]
    # rank 0 waits 2 s in the first step and 4 s in the second: 3 s per step
    waiting = waiting_of({0: rank_of(calls, [3], [5]), 1: rank_of(calls, [1], [1])}, 2)
    assert pairs(waiting) == {(0, 1): 3}
    assert waiting.by_rank[1].last_in == 1


@pytest.mark.parametrize(
    "calls",
    [
        [reduce(0, 1, of=Y)],
        [reduce(0, 1), reduce(0, 1)],
        [op("c10d::barrier", {}, [], group_size=2, group_ranks=(0, 1))],
        [ADD],
    ],
    ids=["another size", "one more", "another kind", "none"],
)
def test_collectives_that_differ_are_not_compared(calls):
    waiting = waiting_of({0: rank_of([reduce(0, 1)], [3]), 1: rank_of(calls, [1] * len(calls))}, 2)
    assert waiting.waits == ()
    assert waiting.unmatched >= 1


def test_what_cannot_be_known_is_counted():
    unknown = reduce(size=3)  # which three of four ranks is not known
    assert waiting_of({0: rank_of([unknown], [3]), 1: rank_of([unknown], [1])}, 4) == Waiting(unmatched=1)
    calls = [reduce(0, 1), reduce(0, 1)]
    untimed = waiting_of({0: rank_of(calls, [np.nan, 4]), 1: rank_of(calls, [1, 1])}, 2)
    assert pairs(untimed) == {(0, 1): 3}
    assert (untimed.collectives, untimed.unmatched) == (1, 1)
    assert waiting_of({0: rank_of(calls, [3, 3])}, 2) == Waiting(unmatched=2)  # rank 1 has no session


def test_a_broadcast_is_left_by_its_root_early():
    calls = [op("c10d::broadcast_", {"tensors": [X]}, [X], group_size=2, group_ranks=(0, 1))]
    assert waiting_of({0: rank_of(calls, [1]), 1: rank_of(calls, [3])}, 2) == Waiting()


@given(st.lists(st.lists(st.integers(1, 100), min_size=4, max_size=4), min_size=1, max_size=6))
def test_waits_sum_to_what_each_took_longer_than_the_shortest(collectives):
    calls = [reduce(0, 1, 2, 3)] * len(collectives)
    sessions = {rank: rank_of(calls, [times[rank] for times in collectives]) for rank in range(4)}
    waiting = waiting_of(sessions, 4)
    longer = sum(time - min(times) for times in collectives for time in times)
    assert sum(wait.seconds for wait in waiting.waits) == pytest.approx(longer)
    assert sum(each.waits_s for each in waiting.by_rank) == pytest.approx(
        sum(each.others_wait_s for each in waiting.by_rank)
    )


def test_the_report_names_who_arrives_last():
    calls = [Call(op=ADD), Call(op=reduce(0, 1))]

    def analysis(rank, seconds):
        facts = {"world_size": "2", "rank": str(rank)}
        return Analysis(session_of(calls, times=[seconds], walls=[5], environment=facts), H100, "a step")

    report = ranks_report(merge([analysis(0, [1, 4]), analysis(1, [4, 1])]))
    facts = {name: str(value) for name, value in report.facts}
    assert facts["arrives last"] == "rank 1, in 1 of 1 collectives"
    assert facts["others wait for it"] == "3.00 s"
    (longest,) = report.data.waiting.longest[:1]
    assert (longest.rank, longest.for_rank, longest.seconds) == (0, 1, 3)


def test_ranks_of_different_programs_are_refused():
    def analysis(rank, name):
        ops = [op(f"aten::{one}", {"self": X, "other": X}, [X]) for one in name]
        facts = {"rank": str(rank), "world_size": "2"}
        calls = [Call(op=each) for each in (*ops, reduce(0, 1))]
        return Analysis(session_of(calls, environment=facts), H100, "a step")

    stages = [analysis(0, ["add", "mul", "div", "sub"]), analysis(1, ["add", "mul", "div"])]
    assert len(merge(stages).analyses) == 2  # as stages of a pipeline are
    with pytest.raises(ValueError, match=r"a.json and b.json are of different programs: of 2 kinds of ops in b.json"):
        merge([analysis(0, ["add", "mul", "div"]), analysis(1, ["pow", "atan2"])], ["a.json", "b.json"])
