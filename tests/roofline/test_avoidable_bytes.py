"""Bytes that other data spare: no bound counts them, whatever else the program does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import rooflight as rl

H100 = "H100-SXM5-80GB"
N = 1 << 22


def bounds(program):
    with rl.record(memory=True) as recording:
        program()
    analysis = rl.analyze(recording.session, H100)
    return analysis.totals.op_bound_s, analysis.program.fused_bound_s, analysis.program.program_bound_s


def on_meta(*shape, dtype=torch.float32):
    return torch.empty(*shape, device="meta", dtype=dtype)


def seconds(nbytes):
    """At 3.35 TB/s, and for a cache that holds as much as the H100's: 50 MB."""
    return nbytes / 3.352e12


A, B, MASK = on_meta(8 * N), on_meta(8 * N), on_meta(8 * N, dtype=torch.bool)
TABLE, TOKENS = on_meta(100_000, 1024), on_meta(50_000, dtype=torch.int64)


@pytest.mark.parametrize(
    ("program", "least"),
    [
        (lambda: torch.where(MASK, A, B), 8 * N * (1 + 4 + 4)),
        (lambda: torch.where(MASK, A, 0.0), 8 * N * (1 + 4)),
        (lambda: A.masked_fill(MASK, 0.0), 8 * N * (1 + 4)),
        (lambda: A.masked_fill_(MASK, 0.0), 8 * N),
        (lambda: functional.embedding(TOKENS, TABLE), 50_000 * (1024 * 4 + 8)),
        (lambda: TABLE.index_select(0, TOKENS), 50_000 * (1024 * 4 + 8)),
    ],
)
def test_every_bound_is_of_the_data_that_spare_most(program, least):
    for found in bounds(program):
        assert found == pytest.approx(seconds(least), rel=2e-3)


def test_what_another_op_reads_whole_is_not_spared():
    """A tied embedding: its rows are picked, and all are multiplied."""
    hidden = on_meta(8, 1024)

    def step():
        return functional.embedding(TOKENS, TABLE), hidden @ TABLE.t()

    _, _, program = bounds(step)
    assert program == pytest.approx(seconds(TABLE.nbytes + 50_000 * (1024 * 4 + 8) + 8 * 100_000 * 4), rel=2e-2)


def test_what_the_step_made_is_spared_nothing_of_what_it_was_made_of():
    """Scores that a mask hides have still to be computed, of queries and keys that are read."""
    left, right, hidden = on_meta(8192, 512), on_meta(512, 8192), on_meta(8192, 8192, dtype=torch.bool)
    _, _, program = bounds(lambda: (left @ right).masked_fill(hidden, 0.0).sum())
    assert program >= seconds(left.nbytes + right.nbytes + hidden.nbytes)


@given(st.integers(1, 64), st.integers(1, 64), st.data())
def test_no_index_reads_less_than_the_least(rows, picks, data):
    index = torch.tensor(data.draw(st.lists(st.integers(0, rows - 1), min_size=picks, max_size=picks)))
    table = torch.zeros(rows, 4)
    with rl.record() as recording:
        table.index_select(0, index)
    (operation,) = rl.analyze(recording.session, H100).operations
    distinct = len(set(index.tolist())) * 16 + index.nbytes
    assert operation.cost.least_read <= distinct <= max(distinct, operation.cost.bytes_read)
    assert operation.cost.bytes_read <= picks * 16 + index.nbytes


def test_a_gradient_of_one_repeated_number_is_said_to_be():
    """The gradient of a sum: little of the two products with it has to be computed."""
    weight, x = (torch.ones(64, 64, requires_grad=True) for _ in range(2))

    def said(loss):
        with rl.record() as recording:
            loss(x @ weight).backward()
        return [note for note in rl.analyze(recording.session, H100).report().notes if "one number repeated" in note]

    (note,) = said(torch.sum)
    assert note.startswith("2 products take a tensor")
    assert said(lambda y: y.square().sum()) == []
