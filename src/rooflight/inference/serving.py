"""Serving: when requests arrive, when tokens are delivered to them, and when they end, on the host's clock.

Per request: TTFT (time to first token) from its begin to its first delivery; end-to-end latency from begin to end;
TPOT (time per output token) from first to last delivery, over its tokens but one. ITL (inter-token latency) is the time
between two deliveries of one request. Tokens that are delivered at once, as those of a speculative step, are one
delivery: ITL is how long a reader waits for more text, TPOT how long for a token.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rooflight.inference.facts import token_count
from rooflight.inference.problems import Problems
from rooflight.inference.runs import UNKNOWN, Run
from rooflight.inference.sections import Goodput, Latency, RequestSamples, ServingData, ServingStats
from rooflight.inference.sums import Reservoir, Sums
from rooflight.records.quantity import count_of

MOST_RUNS = 1024
"""Runs whose requests are kept apart; later ones share the sums of their label."""

MOST_OPEN: Final = 1 << 16
"""Requests that may be open at once; further ones are not measured."""

_MOST_LABELS: Final = 64
_MORE_LABELS: Final = "(more labels)"

REQUEST_COLUMNS: Final = ("run", "prompt_tokens", "tokens", "deliveries", "begin_ns", "ttft_ns", "last_ns", "e2e_ns")
"""A request that ended: nanoseconds after the first request began, then after its own begin; -1: unknown."""

GAP_COLUMNS: Final = ("run", "gap_ns", "tokens")
"""A delivery after the first: the time since the one before, and its tokens."""


@dataclass(slots=True)
class Mean(Sums):
    """Exact sums of one figure."""

    n: int = 0
    total_ns: float = 0

    def add(self, nanoseconds: float | None) -> None:
        """One more, if it is known."""
        if nanoseconds is not None:
            self.n += 1
            self.total_ns += nanoseconds


@dataclass(slots=True)
class RequestSums(Sums):
    """Exact sums over requests that ended; ``itl`` has all deliveries, also of others. ``met`` met all objectives."""

    requests: int = 0
    tokens: int = 0
    deliveries: int = 0
    met: int = 0
    ttft: Mean = field(default_factory=Mean)
    tpot: Mean = field(default_factory=Mean)
    itl: Mean = field(default_factory=Mean)
    e2e: Mean = field(default_factory=Mean)


@dataclass(slots=True)
class RunRequests:
    """The requests that began in a run. ``span_ns`` is from the begin of the first to the end of the last. After
    ``MOST_RUNS`` runs, those of a label share one: ``earlier_ns`` are the spans of the runs before the last.
    """

    label: str
    first_begin_ns: int
    last_end_ns: int = 0
    earlier_ns: int = 0
    sums: RequestSums = field(default_factory=RequestSums)

    @property
    def span_ns(self) -> int:
        """The time in which its requests were there."""
        return self.earlier_ns + max(0, self.last_end_ns - self.first_begin_ns) if self.sums.requests else 0

    def next_run(self, now: int) -> None:
        """The next run that shares it begins."""
        self.earlier_ns += max(0, self.last_end_ns - self.first_begin_ns)
        self.first_begin_ns = now


@dataclass(frozen=True, slots=True)
class Objectives:
    """Latencies that requests should have at most, in ms; None: any."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return any(each is not None for each in (self.ttft_ms, self.tpot_ms, self.e2e_ms))

    def met(self, ttft_ns: int | None, tpot_ns: float | None, e2e_ns: int) -> bool:
        """Whether a request met them. One without a token has no TTFT, and did not; one with a single delivery has no
        TPOT, and nothing to wait for.
        """
        return (
            (self.ttft_ms is None or (ttft_ns is not None and ttft_ns <= self.ttft_ms * 1e6))
            and (self.tpot_ms is None or tpot_ns is None or tpot_ns <= self.tpot_ms * 1e6)
            and (self.e2e_ms is None or e2e_ns <= self.e2e_ms * 1e6)
        )


@dataclass(slots=True)
class _Request:
    run: int
    of_run: RunRequests
    prompt_tokens: int
    begin_ns: int
    first_ns: int = UNKNOWN
    last_ns: int = UNKNOWN
    tokens: int = 0
    deliveries: int = 0


class Requests:
    """Follows requests, from any thread. ``clock`` gives nanoseconds. Never raises: what cannot be is a problem."""

    def __init__(self, clock: Callable[[], int], objectives: Objectives, problems: Problems) -> None:
        self._clock, self._problems = clock, problems
        self.objectives = objectives
        self.runs: dict[int, RunRequests] = {}
        self.lock = Lock()
        self._open: dict[Hashable, _Request] = {}
        self._skipped: set[Hashable] = set()  # of warm-up runs
        self._origin_ns: int | None = None
        self._shared: dict[str, int] = {}  # by label the number under which runs after MOST_RUNS are kept
        self._shared_run = UNKNOWN
        self.ended = Reservoir(REQUEST_COLUMNS)
        self.gaps = Reservoir(GAP_COLUMNS)

    @property
    def unfinished(self) -> int:
        """Requests that began and did not end."""
        return len(self._open)

    def knows(self, request: Hashable) -> bool:
        """Whether a request is open and measured: hooks see others too, which arrived before they were attached."""
        return request in self._open

    def begin(self, request: Hashable, prompt_tokens: Any, run: Run | None, *, warming_up: bool) -> None:
        """A request arrives in a run."""
        try:
            prompt = UNKNOWN if prompt_tokens is None else _count(prompt_tokens)
        except Exception as error:
            self._problems.note(f"begin_request: prompt of {error}")
            prompt = UNKNOWN
        try:
            with self.lock:
                self._begin(request, prompt, run, warming_up)
        except Exception as error:  # an id that cannot be a key
            self._problems.error("begin_request", error)

    def _begin(self, request: Hashable, prompt: int, run: Run | None, warming_up: bool) -> None:
        if run is None:
            if not warming_up:
                self._problems.note("begin_request() outside of a run was ignored: call begin_run() before it")
            if len(self._skipped) < MOST_OPEN:
                self._skipped.add(request)
            return
        if request in self._open:
            self._problems.note("begin_request() of a request that was open: it began anew")
        elif len(self._open) >= MOST_OPEN:
            self._problems.note(f"more than {MOST_OPEN} requests are open: end_request() each; others are not measured")
            return
        self._skipped.discard(request)
        now = self._clock()
        if self._origin_ns is None:
            self._origin_ns = now
        number = self._number_of(run, now)
        self._open[request] = _Request(number, self.runs[number], prompt, now)

    def _number_of(self, run: Run, now: int) -> int:
        """The run that has the sums of a run: itself, or the first of its label that found no room."""
        if run.number in self.runs:
            return run.number
        if len(self.runs) < MOST_RUNS:
            self.runs[run.number] = RunRequests(run.label, now)
            return run.number
        label = run.label if run.label in self._shared or len(self._shared) < _MOST_LABELS else _MORE_LABELS
        number = self._shared.setdefault(label, run.number)
        shared = self.runs.setdefault(number, RunRequests(label, now))
        if self._shared_run != run.number:
            self._shared_run = run.number
            shared.next_run(now)
        return number

    def deliver(self, request: Hashable, tokens: Any) -> None:
        """Tokens are delivered to a request, all at this moment; none at all is no delivery."""
        try:
            now, count = self._clock(), _count(tokens)
            with self.lock:
                found = self._open.get(request)
                if found is None:
                    self._unknown("request_tokens", request)
                elif count:
                    self._deliver(found, count, now)
        except ValueError as error:
            self._problems.note(f"request_tokens: {error}")
        except Exception as error:
            self._problems.error("request_tokens", error)

    def _deliver(self, found: _Request, count: int, now: int) -> None:
        if found.deliveries:
            self.gaps.add((found.run, now - found.last_ns, count))
            found.of_run.sums.itl.add(now - found.last_ns)
        else:
            found.first_ns = now
        found.last_ns = now
        found.tokens += count
        found.deliveries += 1

    def end(self, request: Hashable) -> None:
        """A request is done."""
        try:
            now = self._clock()
            with self.lock:
                found = self._open.pop(request, None)
                if found is None:
                    self._unknown("end_request", request)
                    self._skipped.discard(request)
                else:
                    self._end(found, now)
        except Exception as error:
            self._problems.error("end_request", error)

    def _end(self, found: _Request, now: int) -> None:
        begin, e2e = found.begin_ns, now - found.begin_ns
        ttft = found.first_ns - begin if found.deliveries else None
        tpot = (found.last_ns - found.first_ns) / (found.tokens - 1) if found.deliveries > 1 else None
        last = found.last_ns - begin if found.deliveries else UNKNOWN
        about = found.run, found.prompt_tokens, found.tokens, found.deliveries
        self.ended.add((*about, begin - (self._origin_ns or 0), UNKNOWN if ttft is None else ttft, last, e2e))
        found.of_run.last_end_ns = max(found.of_run.last_end_ns, now)
        sums = found.of_run.sums
        sums.requests += 1
        sums.tokens += found.tokens
        sums.deliveries += found.deliveries
        sums.met += self.objectives.met(ttft, tpot, e2e)
        sums.e2e.add(e2e)
        sums.ttft.add(ttft)
        sums.tpot.add(tpot)

    def _unknown(self, call: str, request: Hashable) -> None:
        if request not in self._skipped:
            self._problems.note(f"{call}() of a request that is not open was ignored: begin_request() comes first")


def _count(tokens: Any) -> int:
    """A number of tokens. Raises ValueError for what is none, and for one on a device: reading it would wait."""
    if getattr(tokens, "is_cuda", False):
        raise ValueError("tokens on a device: reading them would wait for it: give a number")
    return token_count(tokens)


REQUESTS_FILE: Final = "requests.csv"
DELIVERIES_FILE: Final = "deliveries.csv"


def serving_data(requests: Requests) -> ServingData:
    """The statistics of all requests."""
    with requests.lock:
        runs, figures = requests.runs, _figures(requests)
        by_label: dict[str, dict[int, RunRequests]] = {}
        for number, run in runs.items():
            by_label.setdefault(run.label, {})[number] = run
        return ServingData(
            **_stats(requests, runs, figures),
            unfinished=requests.unfinished,
            by_label={
                label: ServingStats(**_stats(requests, some, figures))
                for label, some in by_label.items()
                if len(by_label) > 1
            },
            request_samples=_samples(requests.ended, REQUESTS_FILE),
            delivery_samples=_samples(requests.gaps, DELIVERIES_FILE),
            reason=_reason(requests),
        )


def _samples(rows: Reservoir, file: str) -> RequestSamples:
    return RequestSamples(kept=rows.kept, seen=rows.seen, exact=rows.exact, file=file)


_Figures = Mapping[str, tuple[NDArray[Any], NDArray[Any]]]
"""The samples kept, as the runs that they are of and ns, by figure."""


def _figures(requests: Requests) -> _Figures:
    ended, gaps = requests.ended.columns(), requests.gaps.columns()
    run, ttft, last = ended["run"], ended["ttft_ns"], ended["last_ns"]
    some, several = ttft != UNKNOWN, ended["deliveries"] > 1
    return {
        "ttft": (run[some], ttft[some]),
        "tpot": (run[several], (last - ttft)[several] / (ended["tokens"][several] - 1)),
        "itl": (gaps["run"], gaps["gap_ns"]),
        "e2e": (run, ended["e2e_ns"]),
    }


def _latency(samples: tuple[NDArray[Any], NDArray[Any]], runs: Mapping[int, RunRequests], mean: Mean) -> Latency:
    of_run, values = samples
    ms = values[np.isin(of_run, list(runs))] / 1e6
    p50, p90, p99 = np.percentile(ms, (50, 90, 99)).tolist() if ms.size else (None,) * 3
    return Latency(p50=p50, p90=p90, p99=p99, mean=mean.total_ns / mean.n / 1e6 if mean.n else None, n=mean.n)


def _stats(requests: Requests, runs: Mapping[int, RunRequests], figures: _Figures) -> dict[str, Any]:
    sums = RequestSums.total(each.sums for each in runs.values())
    duration_s = sum(each.span_ns for each in runs.values()) / 1e9
    wanted = requests.objectives
    known = wanted.given and bool(sums.requests)
    return {
        "requests": sums.requests,
        "tokens": sums.tokens,
        "tokens_per_delivery": sums.tokens / sums.deliveries if sums.deliveries else None,
        "duration_s": duration_s,
        "requests_per_s": sums.requests / duration_s if duration_s else None,
        "output_tok_s": sums.tokens / duration_s if duration_s else None,
        **{f"{name}_ms": _latency(samples, runs, getattr(sums, name)) for name, samples in figures.items()},
        "goodput": Goodput(
            slo_ttft_ms=wanted.ttft_ms,
            slo_tpot_ms=wanted.tpot_ms,
            slo_e2e_ms=wanted.e2e_ms,
            requests_met=sums.met if known else None,
            share=sums.met / sums.requests if known else None,
            requests_per_s=sums.met / duration_s if known and duration_s else None,
        ),
    }


def _reason(requests: Requests) -> str | None:
    if requests.ended.seen:
        return None
    if requests.unfinished:
        return f"{count_of(requests.unfinished, 'request')} began and none ended: call end_request() for each"
    return "no request began in a measured run: call begin_request(), request_tokens() and end_request() for each"
