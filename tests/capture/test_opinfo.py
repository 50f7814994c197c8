"""Recording changes no result and misses no op, on torch's own samples for its own ops."""

import warnings
from typing import Any

import pytest
from opinfo import Tally, check, opinfos, samples

import rooflight as rl

FAST_SAMPLES = 1


pytestmark = pytest.mark.usefixtures("one_thread")


def sweep(limit: int | None) -> tuple[Tally, list[str]]:
    tally, wrong = Tally(), []
    for info in opinfos():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for index, sample in enumerate(samples(info, limit)):
                try:
                    tally.add(check(info, sample))
                except Exception as error:
                    wrong.append(f"{info.name} {info.variant_test_name} sample {index}: {error!r}")
    return tally, wrong


def assert_all_costed_or_listed(tally: Tally) -> None:
    """``add`` counts an op as costed or keeps the reason why it is not: here that these are few."""
    assert tally.share_of_calls > 0.99, tally.reasons
    assert tally.share_of_ops > 0.98, tally.reasons


def test_results_gradients_and_records_of_every_op() -> None:
    tally, wrong = sweep(FAST_SAMPLES)
    assert wrong == []
    assert tally.pairs > 500
    assert_all_costed_or_listed(tally)


@pytest.mark.slow
def test_results_gradients_and_records_of_every_sample() -> None:
    tally, wrong = sweep(None)
    assert wrong == []
    assert tally.pairs > 15_000
    assert_all_costed_or_listed(tally)


def one_sample_of_some() -> list[Any]:
    return [(info, sample) for info in opinfos()[::3] for sample in samples(info, 1)]


def test_uncosted_ops_are_listed_by_the_analysis() -> None:
    with rl.record() as recording, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info, sample in one_sample_of_some():
            try:
                info(sample.input, *sample.args, **sample.kwargs)
            except (RuntimeError, NotImplementedError):
                continue
    analysis = rl.analyze(recording.session, "H100-SXM5-80GB")
    coverage = analysis.coverage
    uncosted = sum(op.calls for op in coverage.uncosted)
    assert uncosted == round((1 - coverage.calls) * analysis.totals.calls)
    assert all(op.reason for op in coverage.uncosted)
