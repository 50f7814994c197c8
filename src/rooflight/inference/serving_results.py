"""What requests add up to: latencies, throughput, goodput; in all measured runs, and by the label of their run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rooflight.inference.serving import Mean, Requests, RunRequests
from rooflight.inference.steps import UNKNOWN
from rooflight.records.document import Fields
from rooflight.records.quantity import count_of

REQUESTS_FILE: Final = "requests.csv"
DELIVERIES_FILE: Final = "deliveries.csv"


class Latency(Fields, frozen=True, kw_only=True):
    """A latency in ms, of ``n`` requests (ITL: deliveries). The mean is of all, percentiles are of the samples kept."""

    p50: float | None
    p90: float | None
    p99: float | None
    mean: float | None
    n: int


class Goodput(Fields, frozen=True, kw_only=True):
    """Requests that met every objective that is given; null if none is."""

    slo_ttft_ms: float | None
    slo_tpot_ms: float | None
    slo_e2e_ms: float | None
    requests_met: int | None
    share: float | None
    requests_per_s: float | None


class ServingStats(Fields, frozen=True, kw_only=True):
    """Requests that ended. ``duration_s``: from the begin of a run's first request to the end of its last, all runs
    summed. ``ttft_ms``: begin to first delivery; ``tpot_ms``: first to last delivery, over tokens but one; ``itl_ms``:
    between two deliveries, which may be of several tokens each (``tokens_per_delivery``); ``e2e_ms``: begin to end.
    """

    requests: int
    tokens: int
    tokens_per_delivery: float | None
    duration_s: float
    requests_per_s: float | None
    output_tok_s: float | None
    ttft_ms: Latency
    tpot_ms: Latency
    itl_ms: Latency
    e2e_ms: Latency
    goodput: Goodput


class RequestSamples(Fields, frozen=True, kw_only=True):
    """Raw samples: those kept, of how many. Percentiles are of all if ``exact``, else of a random choice."""

    kept: int
    seen: int
    exact: bool
    file: str


class ServingData(ServingStats, frozen=True, kw_only=True):
    """All measured runs, and each label where there are several. ``reason`` explains why nothing is known."""

    unfinished: int
    by_label: dict[str, ServingStats]
    request_samples: RequestSamples
    delivery_samples: RequestSamples
    reason: str | None


def serving_data(requests: Requests) -> ServingData:
    """The statistics of all requests."""
    with requests.lock:
        return _data(requests)


def _data(requests: Requests) -> ServingData:
    runs = requests.runs
    labels = dict.fromkeys(each.label for each in runs.values())
    samples = _Samples(requests)
    return ServingData(
        **_stats(requests, runs, samples),
        unfinished=requests.unfinished,
        by_label={
            label: ServingStats(
                **_stats(requests, {number: each for number, each in runs.items() if each.label == label}, samples)
            )
            for label in (labels if len(labels) > 1 else ())
        },
        request_samples=RequestSamples(
            kept=requests.ended.kept, seen=requests.ended.seen, exact=requests.ended.exact, file=REQUESTS_FILE
        ),
        delivery_samples=RequestSamples(
            kept=requests.gaps.kept, seen=requests.gaps.seen, exact=requests.gaps.exact, file=DELIVERIES_FILE
        ),
        reason=_reason(requests),
    )


class _Samples:
    """The samples kept, as ns by figure, with the runs that they are of."""

    def __init__(self, requests: Requests) -> None:
        ended, gaps = requests.ended.columns(), requests.gaps.columns()
        run, ttft, last = ended["run"], ended["ttft_ns"], ended["last_ns"]
        several = ended["deliveries"] > 1
        tpot = (last - ttft)[several] / (ended["tokens"][several] - 1)
        self._values: dict[str, tuple[NDArray[np.int64], NDArray[Any]]] = {
            "ttft": (run[ttft != UNKNOWN], ttft[ttft != UNKNOWN]),
            "tpot": (run[several], tpot),
            "itl": (gaps["run"], gaps["gap_ns"]),
            "e2e": (run, ended["e2e_ns"]),
        }

    def latency(self, name: str, runs: Mapping[int, RunRequests]) -> Latency:
        """The statistics of one figure in some runs."""
        of_run, values = self._values[name]
        ms = values[np.isin(of_run, list(runs))] / 1e6
        p50, p90, p99 = np.percentile(ms, (50, 90, 99)).tolist() if ms.size else (None,) * 3
        mean = Mean()
        for each in runs.values():
            mean.merge(getattr(each, name))
        return Latency(p50=p50, p90=p90, p99=p99, mean=mean.total_ns / mean.n / 1e6 if mean.n else None, n=mean.n)


def _stats(requests: Requests, runs: Mapping[int, RunRequests], samples: _Samples) -> dict[str, Any]:
    def total(values: Iterable[int]) -> int:
        return sum(values)

    ended = total(each.requests for each in runs.values())
    tokens = total(each.tokens for each in runs.values())
    deliveries = total(each.deliveries for each in runs.values())
    met = total(each.met for each in runs.values())
    duration_s = total(each.span_ns for each in runs.values()) / 1e9
    wanted = requests.objectives
    known = wanted.given and bool(ended)
    return {
        "requests": ended,
        "tokens": tokens,
        "tokens_per_delivery": tokens / deliveries if deliveries else None,
        "duration_s": duration_s,
        "requests_per_s": ended / duration_s if duration_s else None,
        "output_tok_s": tokens / duration_s if duration_s else None,
        **{f"{name}_ms": samples.latency(name, runs) for name in ("ttft", "tpot", "itl", "e2e")},
        "goodput": Goodput(
            slo_ttft_ms=wanted.ttft_ms,
            slo_tpot_ms=wanted.tpot_ms,
            slo_e2e_ms=wanted.e2e_ms,
            requests_met=met if known else None,
            share=met / ended if known else None,
            requests_per_s=met / duration_s if known and duration_s else None,
        ),
    }


def _reason(requests: Requests) -> str | None:
    if requests.ended.seen:
        return None
    if requests.unfinished:
        return f"{count_of(requests.unfinished, 'request')} began and none ended: call end_request() for each"
    return "no request began in a measured run: call begin_request(), request_tokens() and end_request() for each"
