import numpy as np
import pytest
from builders import op, spec
from hypothesis import given
from hypothesis import strategies as st
from sessions import Call, session_of

from rooflight.devices import get
from rooflight.records.measurement import Measurement
from rooflight.reporting.json import render_json
from rooflight.reporting.markdown import render_markdown
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.ranks import merge, ranks_report

H100 = get("H100-SXM5-80GB")
X = spec((1000,))
SUM = op("c10d::allreduce_", {"tensors": [X]}, [X], group_size=2)
ADD = op("aten::add", {"self": X, "other": X}, [X])


def analysis(rank: int, *, size: int = 2, own: float | None = None, wait: float = 1.0, **environment: str) -> Analysis:
    """A rank that adds for ``own`` seconds, then waits and reduces for ``wait``; not measured without ``own``."""
    facts = {"rank": str(rank), "world_size": str(size), "backend": "gloo", **environment}
    session = session_of([Call(op=ADD), Call(op=SUM)], environment=facts)
    if own is not None:
        session = session.with_measurement(
            Measurement(
                wall_samples_s=np.array([own + wait + 1]),
                op_samples_s=np.array([[own, wait]]),
                op_starts_s=np.array([[0, own]]),
                clock="by hand",
            )
        )
    return Analysis(session, H100, "a step")


def test_the_slowest_rank_is_the_one_that_others_wait_for():
    ranked = merge([analysis(1, own=5, wait=1), analysis(0, own=2, wait=4)])
    assert [time.rank for time in ranked.times] == [0, 1]
    assert (ranked.slowest, ranked.least_exposed, ranked.missing) == (1, 1, ())
    assert [time.own_s for time in ranked.times] == [3, 6]  # 7 - 4, 7 - 1
    spreads = {spread.name: spread for spread in ranked.spreads}
    assert spreads["measured step"].spread_s == 0
    assert spreads["exposed communication"].spread_s == 3
    assert spreads["exposed communication"].share_of_median == pytest.approx(3 / 2.5)
    assert spreads["computing ops"].median_s == 3.5
    report = ranks_report(ranked)
    assert report.conclusion.startswith(
        "Rank 1 is the slowest: it spends 1.00 s of a step in collectives alone, while rank 0, which waits for it, "
        "spends 4.00 s (3.00 s apart, 42.9% of a step)."
    )
    assert [table.id for table in report.tables][:4] == ["ranks", "waits", "spread", "slowest_account"]
    assert report.table("slowest_account").title == "Rank 1: Where the time goes"
    assert report.data.slowest_rank == 1
    assert report.data.slowest.totals.measured_s == 7
    render_json(report)
    render_markdown(report)


def test_ranks_that_wait_alike_are_even():
    ranked = merge([analysis(0, own=5, wait=1), analysis(1, own=5, wait=1.01)])
    assert ranks_report(ranked).conclusion.startswith("The ranks are even: their waiting differs by 10.0 ms per step.")


def test_a_rank_that_died_is_named_and_the_report_goes_on():
    report = ranks_report(merge([analysis(0, size=4, own=5), analysis(3, size=4, own=5)]))
    assert any(note.startswith("No session of ranks 1, 2: it may have died") for note in report.notes)
    assert report.data.missing_ranks == (1, 2)
    assert dict(report.facts)["ranks"] == "2 of 4"
    assert ranks_report(merge([analysis(2, size=4)])).conclusion.startswith("Only rank 2 is known.")


def test_unmeasured_ranks_are_compared_by_their_bounds_and_not_with_measured_ones():
    report = ranks_report(merge([analysis(0), analysis(1)]))
    assert report.conclusion.startswith("Nothing was measured: rank 0 has the largest op bound")
    mixed = merge([analysis(0), analysis(1, own=1)])
    assert mixed.slowest == 1
    assert any("Not all ranks were measured" in note for note in ranks_report(mixed).notes)


def test_ranks_of_different_programs_are_pointed_out():
    report = ranks_report(merge([analysis(0, own=1, target="gpt2"), analysis(1, own=1, target="bert")]))
    assert "The ranks did not run the same: bert, gpt2." in report.notes


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([analysis(0)], "a and b are both rank 0: give each rank's session once"),
        ([analysis(1, size=3)], "a is of 2 ranks, b of 3: these are different runs"),
        ([Analysis(session_of([Call(op=ADD)]), H100)], "b has no rank: record it after torch.distributed.init_process"),
        ([analysis(5)], "b is marked as rank 5 of 2"),
    ],
    ids=["twice", "sizes", "no rank", "beyond"],
)
def test_sessions_that_do_not_belong_together_are_refused(others, message):
    with pytest.raises(ValueError, match=message):
        merge([analysis(0), *others], ["a", "b"])


def test_nothing_cannot_be_merged():
    with pytest.raises(ValueError, match="no sessions to merge"):
        merge([])


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 10)), min_size=1, max_size=6), st.randoms())
def test_the_order_of_the_files_does_not_matter(times, random):
    ranks = [analysis(rank, size=len(times), own=own, wait=wait) for rank, (own, wait) in enumerate(times)]
    ranked = merge(ranks)
    random.shuffle(ranks)
    again = merge(ranks)
    assert again.times == ranked.times
    assert again.slowest == ranked.slowest
    last = ranked.waiting.last  # the rank of the headline is that of the table of waits
    slowest = max(time.slowness for time in ranked.times)
    assert ranked.slowest == last.rank if last else ranked.times[ranked.slowest].slowness == slowest
    for account in ranked.accounts.values():
        assert sum(account.by("cause").values()) == pytest.approx(account.wall_s)
    for spread in ranked.spreads:
        assert 0 <= spread.lowest_s <= spread.median_s <= spread.highest_s
