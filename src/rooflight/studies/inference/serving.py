"""Serving: when requests arrive, when tokens are delivered to them, and when they end, on the host's clock.

Per request: TTFT (time to first token) from its begin to its first delivery; end-to-end latency from begin to end;
TPOT (time per output token) from first to last delivery, over its tokens but one. ITL (inter-token latency) is the time
between two deliveries of one request. Tokens that are delivered at once, as those of a speculative step, are one
delivery: ITL is how long a reader waits for more text, TPOT how long for a token.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Final

from numpy.typing import NDArray

from rooflight.records.document import Fields
from rooflight.records.quantity import count_of
from rooflight.studies.inference.config import ProfilerConfig
from rooflight.studies.inference.facts import token_count
from rooflight.studies.inference.problems import Problems, guarded
from rooflight.studies.inference.sums import UNKNOWN, Reservoir, Sums, percentiles

MOST_OPEN: Final = 1 << 16
"""Requests that may be open at once; further ones are not measured."""

_MOST_LABELS: Final = 64
_MORE_LABELS: Final = "(more labels)"

REQUESTS_FILE: Final = "requests.csv"
DELIVERIES_FILE: Final = "deliveries.csv"

REQUEST_COLUMNS: Final = ("run", "prompt_tokens", "tokens", "deliveries", "begin_ns", "ttft_ns", "last_ns", "e2e_ns")
"""A request that ended: nanoseconds after the first request began, then after its own begin; -1: unknown."""

GAP_COLUMNS: Final = ("run", "gap_ns", "tokens")
"""A delivery after the first: the time since the one before, and its tokens."""

_GROUP: Final = "group"  # a last column of both, for their labels


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
    """Exact sums over requests that ended; ``itl`` has all deliveries, also of others. ``met`` met all objectives.
    ``spans_ns`` are of runs, from the begin of the first request to the end of the last.
    """

    requests: int = 0
    tokens: int = 0
    deliveries: int = 0
    met: int = 0
    spans_ns: int = 0
    ttft: Mean = field(default_factory=Mean)
    tpot: Mean = field(default_factory=Mean)
    itl: Mean = field(default_factory=Mean)
    e2e: Mean = field(default_factory=Mean)


@dataclass(slots=True)
class Group:
    """The requests of runs with the same label. ``begin_ns`` and ``end_ns`` are those of its last ``run``."""

    number: int
    sums: RequestSums = field(default_factory=RequestSums)
    run: int = UNKNOWN
    begin_ns: int = 0
    end_ns: int = 0

    def next_run(self, number: int, now: int) -> None:
        """The first request of another run arrives."""
        self.sums.spans_ns += max(0, self.end_ns - self.begin_ns)
        self.run, self.begin_ns, self.end_ns = number, now, 0

    def total(self) -> RequestSums:
        """All sums, with the span of the last run."""
        return replace(self.sums, spans_ns=self.sums.spans_ns + max(0, self.end_ns - self.begin_ns))


@dataclass(slots=True)
class _Request:
    run: int
    group: Group
    prompt_tokens: int
    begin_ns: int
    first_ns: int = UNKNOWN
    last_ns: int = UNKNOWN
    tokens: int = 0
    deliveries: int = 0


class Requests:
    """Follows requests, from any thread. ``clock`` gives nanoseconds. Never raises: what cannot be is a problem."""

    def __init__(self, clock: Callable[[], int], config: ProfilerConfig, problems: Problems) -> None:
        self._clock, self.problems = clock, problems
        self._config = config
        self._groups: dict[str, Group] = {}
        self._lock = Lock()
        self._open: dict[Hashable, _Request] = {}
        self._skipped: set[Hashable] = set()  # of warm-up runs
        self._origin_ns: int | None = None
        self.ended = Reservoir((*REQUEST_COLUMNS, _GROUP))
        self.gaps = Reservoir((*GAP_COLUMNS, _GROUP))

    @property
    def unfinished(self) -> int:
        """Requests that began and did not end."""
        return len(self._open)

    def knows(self, request: Hashable) -> bool:
        """Whether a request is open and measured: hooks see others too, which arrived before they were attached."""
        return request in self._open

    @guarded
    def begin_request(
        self, request: Hashable, prompt_tokens: Any, run: tuple[int, str] | None, *, skipped: bool
    ) -> None:
        """A request arrives in a run, which is its number and label. ``skipped``: it is not to be measured."""
        try:
            prompt = UNKNOWN if prompt_tokens is None else _count(prompt_tokens)
        except Exception as error:
            self.problems.note(f"begin_request: prompt of {error}")
            prompt = UNKNOWN
        with self._lock:
            if run is None or skipped:
                if not skipped:
                    self.problems.note("begin_request() outside of a run was ignored: call begin_run() before it")
                if len(self._skipped) < MOST_OPEN:
                    self._skipped.add(request)
                return
            if request in self._open:
                self.problems.note("begin_request() of a request that was open: it began anew")
            elif len(self._open) >= MOST_OPEN:
                self.problems.note(
                    f"more than {MOST_OPEN} requests are open: end_request() each; others are not measured"
                )
                return
            self._skipped.discard(request)
            now = self._clock()
            if self._origin_ns is None:
                self._origin_ns = now
            number, label = run
            if label not in self._groups and len(self._groups) >= _MOST_LABELS:
                label = _MORE_LABELS
            group = self._groups.setdefault(label, Group(len(self._groups)))
            if group.run != number:
                group.next_run(number, now)
            self._open[request] = _Request(number, group, prompt, now)

    def deliver(self, request: Hashable, tokens: Any) -> None:
        """Tokens are delivered to a request, all at this moment; none at all is no delivery."""
        try:
            now, count = self._clock(), _count(tokens)
            with self._lock:
                found = self._open.get(request)
                if found is None:
                    self._unknown("request_tokens", request)
                elif count:
                    if found.deliveries:
                        self.gaps.add((found.run, now - found.last_ns, count, found.group.number))
                        found.group.sums.itl.add(now - found.last_ns)
                    else:
                        found.first_ns = now
                    found.last_ns = now
                    found.tokens += count
                    found.deliveries += 1
        except ValueError as error:
            self.problems.note(f"request_tokens: {error}")
        except Exception as error:
            self.problems.error("request_tokens", error)

    @guarded
    def end_request(self, request: Hashable) -> None:
        """A request is done."""
        now = self._clock()
        with self._lock:
            found = self._open.pop(request, None)
            if found is None:
                self._unknown("end_request", request)
                self._skipped.discard(request)
            else:
                self._end(found, now)

    def _end(self, found: _Request, now: int) -> None:
        begin, e2e = found.begin_ns, now - found.begin_ns
        ttft = found.first_ns - begin if found.deliveries else None
        tpot = (found.last_ns - found.first_ns) / (found.tokens - 1) if found.deliveries > 1 else None
        last = found.last_ns - begin if found.deliveries else UNKNOWN
        about = found.run, found.prompt_tokens, found.tokens, found.deliveries
        times = begin - (self._origin_ns or 0), UNKNOWN if ttft is None else ttft, last, e2e
        self.ended.add((*about, *times, found.group.number))
        found.group.end_ns = max(found.group.end_ns, now)
        sums = found.group.sums
        sums.requests += 1
        sums.tokens += found.tokens
        sums.deliveries += found.deliveries
        sums.met += self._met(ttft, tpot, e2e)
        sums.e2e.add(e2e)
        sums.ttft.add(ttft)
        sums.tpot.add(tpot)

    def _met(self, ttft_ns: int | None, tpot_ns: float | None, e2e_ns: int) -> bool:
        """Without a token there is no TTFT, and it is not met; with one delivery no TPOT, and nothing to wait for."""
        ttft, tpot, e2e = self._config.slo_ttft_ms, self._config.slo_tpot_ms, self._config.slo_e2e_ms
        return (
            (ttft is None or (ttft_ns is not None and ttft_ns <= ttft * 1e6))
            and (tpot is None or tpot_ns is None or tpot_ns <= tpot * 1e6)
            and (e2e is None or e2e_ns <= e2e * 1e6)
        )

    def _unknown(self, call: str, request: Hashable) -> None:
        if request not in self._skipped:
            self.problems.note(f"{call}() of a request that is not open was ignored: begin_request() comes first")

    # -- results ------------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, str]:
        """The raw samples by name of file; none if no request began."""
        with self._lock:
            if not self._groups:
                return {}
            return {
                REQUESTS_FILE: self.ended.csv(REQUEST_COLUMNS),
                DELIVERIES_FILE: self.gaps.csv(GAP_COLUMNS),
            }

    def data(self) -> ServingData:
        """The statistics of all requests."""
        with self._lock:
            figures, groups = self._figures(), self._groups
            by_label = {
                label: ServingStats(**self._stats(group.total(), figures, group.number))
                for label, group in groups.items()
                if len(groups) > 1
            }
            return ServingData(
                **self._stats(RequestSums.total(group.total() for group in groups.values()), figures, None),
                unfinished=self.unfinished,
                by_label=by_label,
                request_samples=RequestSamples.view(self.ended, file=REQUESTS_FILE),
                delivery_samples=RequestSamples.view(self.gaps, file=DELIVERIES_FILE),
                reason=self._reason(),
            )

    def _figures(self) -> _Figures:
        ended, gaps = self.ended.columns(), self.gaps.columns()
        group, ttft, last = ended[_GROUP], ended["ttft_ns"], ended["last_ns"]
        some, several = ttft != UNKNOWN, ended["deliveries"] > 1
        return {
            "ttft": (group[some], ttft[some]),
            "tpot": (group[several], (last - ttft)[several] / (ended["tokens"][several] - 1)),
            "itl": (gaps[_GROUP], gaps["gap_ns"]),
            "e2e": (group, ended["e2e_ns"]),
        }

    def _stats(self, sums: RequestSums, figures: _Figures, group: int | None) -> dict[str, Any]:
        duration_s = sums.spans_ns / 1e9
        slo = {name: getattr(self._config, name) for name in ("slo_ttft_ms", "slo_tpot_ms", "slo_e2e_ms")}
        known = any(slo.values()) and bool(sums.requests)
        return {
            "requests": sums.requests,
            "tokens": sums.tokens,
            "tokens_per_delivery": sums.tokens / sums.deliveries if sums.deliveries else None,
            "duration_s": duration_s,
            "requests_per_s": sums.requests / duration_s if duration_s else None,
            "output_tok_s": sums.tokens / duration_s if duration_s else None,
            **{f"{name}_ms": _latency(samples, group, getattr(sums, name)) for name, samples in figures.items()},
            "goodput": Goodput(
                **slo,
                requests_met=sums.met if known else None,
                share=sums.met / sums.requests if known else None,
                requests_per_s=sums.met / duration_s if known and duration_s else None,
            ),
        }

    def _reason(self) -> str | None:
        if self.ended.seen:
            return None
        if self.unfinished:
            return f"{count_of(self.unfinished, 'request')} began and none ended: call end_request() for each"
        return "no request began in a measured run: call begin_request(), request_tokens() and end_request() for each"


_Figures = Mapping[str, tuple[NDArray[Any], NDArray[Any]]]
"""The samples kept, as the groups that they are of and ns, by figure."""


def _count(tokens: Any) -> int:
    if getattr(tokens, "is_cuda", False):
        raise ValueError("tokens on a device: reading them would wait for it: give a number")
    return token_count(tokens)


def _latency(samples: tuple[NDArray[Any], NDArray[Any]], group: int | None, mean: Mean) -> Latency:
    of_group, values = samples
    p50, p90, p99 = percentiles(values if group is None else values[of_group == group], 50, 90, 99)
    return Latency(p50=p50, p90=p90, p99=p99, mean=mean.total_ns / mean.n / 1e6 if mean.n else None, n=mean.n)
