"""set_step_speculation: what a step's rounds are, whatever they are told in, and what they cannot be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import run_of

from rooflight.inference import NullProfiler
from rooflight.studies.inference.speculation import Drafts, RoundSums, drafts_of


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda x: torch.tensor(x, dtype=torch.int32)])
def test_rounds_of_a_batch(kind):
    found = drafts_of(kind([4, 4, 0]), kind([4, 1, 0]), None, batch=3)
    assert found == Drafts(proposed=(4, 4, 0), accepted=(4, 1, 0), depth=(4, 4, 0))
    assert drafts_of(4, kind([4, 1]), None, batch=2) == Drafts((4, 4), (4, 1), (4, 4))


@pytest.mark.parametrize("count", [3, 3.0, np.int64(3), np.array(3), torch.tensor(3), torch.tensor([3]), [3]])
def test_one_sequence(count):
    assert drafts_of(5, count, None, batch=1) == Drafts((5,), (3,), (5,))
    assert drafts_of(count, 2, None, batch=None) == Drafts((3,), (2,), (3,))


def test_a_tree_has_nodes_and_a_depth():
    assert drafts_of([26, 26], [2, 4], 4, batch=2) == Drafts((26, 26), (2, 4), (4, 4))
    assert drafts_of(26, [2, 4], [4, 5], batch=2) == Drafts((26, 26), (2, 4), (4, 5))


@pytest.mark.parametrize(
    ("proposed", "accepted", "depth", "message"),
    [
        (4, 5, None, "5 draft tokens accepted of 4 proposed: leave out the target's own token"),
        (26, 5, 4, "5 draft tokens accepted of a depth of 4"),
        (3, 1, 4, "a draft of 3 tokens with a depth of 4"),
        (3, 0, 0, "a draft of 3 tokens with a depth of 0"),
        (-1, 0, None, "give numbers from 0 on"),
        (4, -1, None, "give numbers from 0 on"),
        (4, float("nan"), None, "whole numbers"),
        (4, 1.5, None, "whole numbers"),
        (float("inf"), 1, None, "whole numbers"),
        (4, True, None, "a whole number per sequence"),
        ("4", 1, None, "a whole number per sequence"),
        (None, 1, None, "a whole number per sequence"),
        (4, None, None, "a whole number per sequence"),
        ({}, [1], None, "a whole number per sequence"),
        ([], [], None, "a whole number per sequence"),
        ([[4], [4, 4]], [1, 1], None, "a whole number per sequence"),
        (10**400, 1, None, "a whole number per sequence"),
        ([4, 4], [[1], [1]], None, r"shape \(2, 1\)"),
        ([4, 4, 4], [1, 1], None, "3 sequences, accepted ones of 2"),
        ([4, 4], [1, 1], [4], "depth draft tokens of 1 sequences"),
        (1025, 1, None, "up to 1024"),
    ],
)  # fmt: skip
def test_rounds_that_cannot_be(bench, proposed, accepted, depth, message, prof):
    with pytest.raises(ValueError, match=message):
        drafts_of(proposed, accepted, depth, batch=None)
    with run_of(prof):
        for told in ((proposed, accepted, depth), (4, 2)):
            with prof.step_timing_ctx():
                bench.work(10)
                prof.set_step_speculation(*told)
                prof.set_step_tokens(3)
    found = prof.results.speculation.data()
    assert prof.results.totals.tokens == 6  # the step itself is measured
    assert (found.proposed, found.accepted, found.steps) == (4, 2, 1)
    assert any(problem.startswith("set_step_speculation: ") for problem in prof.problems.counts)


@pytest.mark.parametrize(
    ("proposed", "accepted", "message"),
    [
        (4, 1, "one number of draft tokens for a batch of 3: give one per sequence"),
        ([4] * 4, [1] * 4, "4 sequences for a batch of 3"),
    ],
)
def test_rounds_that_do_not_fit_the_batch(proposed, accepted, message):
    with pytest.raises(ValueError, match=message):
        drafts_of(proposed, accepted, None, batch=3)


def test_rounds_of_fewer_sequences_than_the_batch():
    """Sequences that are done are left out."""
    assert drafts_of([4], [1], None, batch=3) == Drafts((4,), (1,), (4,))


def test_more_tokens_than_rounds_can_yield_are_named(bench, prof):
    with run_of(prof, bsz=3):
        for tokens in (7, 6, 8):  # 4 accepted, and one for each of 3: 7 at most
            with prof.step_timing_ctx():
                prof.set_step_speculation([4, 4, 0], [3, 1, 0])
                prof.set_step_tokens(tokens)
    ((problem, count),) = prof.problems.counts.items()
    assert problem.startswith("set_step_tokens: more tokens than draft tokens accepted and one per sequence")
    assert count == 1


def test_outside_of_a_step_and_in_none(prof):
    prof.set_step_speculation(4, 1)
    assert list(prof.problems.counts) == ["set_step_speculation() outside of a measured step was ignored"]
    NullProfiler().set_step_speculation(4, 1)


def test_counts_are_read_when_they_are_set(bench, prof):
    for kind in (list, np.array, torch.tensor):
        with run_of(prof, bsz=2), prof.step_timing_ctx():
            proposed, accepted = kind([4, 4]), kind([1, 2])
            prof.set_step_speculation(proposed, accepted)
            proposed[0] = accepted[0] = 99  # the engine goes on with them
    found = prof.results.speculation.data()
    assert (found.proposed, found.accepted) == (24, 9)


def test_what_was_said_of_one_step_is_not_said_of_the_next(bench, prof):
    with run_of(prof):
        for number in range(3):
            with prof.step_timing_ctx():
                if number == 1:
                    prof.set_step_speculation(4, 1)
    found = prof.results.speculation.data()
    assert (found.rounds, found.rounds_by_accepted) == (1, (0, 1))


rounds = st.lists(
    st.integers(0, 1024).flatmap(lambda depth: st.tuples(st.just(depth), st.integers(0, depth))),
    min_size=1,
    max_size=40,
)


@given(rounds)
def test_sums_are_those_of_the_rounds(pairs):
    sums = RoundSums()
    sums.add(drafts_of([depth for depth, _ in pairs], [accepted for _, accepted in pairs], None, batch=len(pairs)))
    assert sums.proposed == sum(depth for depth, _ in pairs)
    assert sums.accepted == sum(accepted for _, accepted in pairs) <= sums.proposed
    assert sum(sums.by_depth.values()) == len(pairs)
    twice = RoundSums()
    twice.merge(sums)
    twice.merge(sums)
    assert twice.by_depth == {pair: 2 * count for pair, count in sums.by_depth.items()}
