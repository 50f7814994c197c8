"""Serving: when requests arrive, when tokens are delivered to them, and when they end, on the host's clock.

Per request: TTFT (time to first token) from its begin to its first delivery; end-to-end latency from begin to end;
TPOT (time per output token) from first to last delivery, over its tokens but one. ITL (inter-token latency) is the time
between two deliveries of one request. Tokens that are delivered at once, as those of a speculative step, are one
delivery: ITL is how long a reader waits for more text, TPOT how long for a token.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from rooflight.inference.kv_length import token_count
from rooflight.inference.problems import Problems
from rooflight.inference.reservoir import Reservoir
from rooflight.inference.steps import MOST_RUNS, UNKNOWN, Run

MOST_OPEN: Final = 1 << 16
"""Requests that may be open at once; further ones are not measured."""

_MOST_LABELS: Final = 64
_MORE_LABELS: Final = "(more labels)"

REQUEST_COLUMNS: Final = ("run", "prompt_tokens", "tokens", "deliveries", "begin_ns", "ttft_ns", "last_ns", "e2e_ns")
"""A request that ended: nanoseconds after the first request began, then after its own begin; -1: unknown."""

GAP_COLUMNS: Final = ("run", "gap_ns", "tokens")
"""A delivery after the first: the time since the one before, and its tokens."""


@dataclass(slots=True)
class Mean:
    """Exact sums of one figure."""

    n: int = 0
    total_ns: float = 0

    def add(self, nanoseconds: float) -> None:
        """One more."""
        self.n += 1
        self.total_ns += nanoseconds

    def merge(self, other: Mean) -> None:
        """Both."""
        self.n += other.n
        self.total_ns += other.total_ns


@dataclass(slots=True)
class RunRequests:
    """Exact sums over the requests that began in a run and ended. ``itl`` has all deliveries, also of others.
    ``span_ns`` is from the begin of the first to the end of the last; ``met`` met all objectives. After ``MOST_RUNS``
    runs, those of a label share one: ``earlier_ns`` are the spans of the runs before the last.
    """

    label: str
    first_begin_ns: int
    last_end_ns: int = 0
    requests: int = 0
    tokens: int = 0
    deliveries: int = 0
    met: int = 0
    ttft: Mean = field(default_factory=Mean)
    tpot: Mean = field(default_factory=Mean)
    itl: Mean = field(default_factory=Mean)
    e2e: Mean = field(default_factory=Mean)
    earlier_ns: int = 0

    @property
    def span_ns(self) -> int:
        """The time in which its requests were there."""
        return self.earlier_ns + max(0, self.last_end_ns - self.first_begin_ns) if self.requests else 0

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
    sums: RunRequests
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
        sums = self.runs.setdefault(number, RunRequests(label, now))
        if self._shared_run != run.number:
            self._shared_run = run.number
            sums.next_run(now)
        return number

    def deliver(self, request: Hashable, tokens: Any) -> None:
        """Tokens are delivered to a request, all at this moment; none at all is no delivery."""
        try:
            now = self._clock()
            count = _count(tokens)
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
            found.sums.itl.add(now - found.last_ns)
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
        begin, sums = found.begin_ns, found.sums
        ttft = found.first_ns - begin if found.deliveries else None
        tpot = (found.last_ns - found.first_ns) / (found.tokens - 1) if found.deliveries > 1 else None
        last = found.last_ns - begin if found.deliveries else UNKNOWN
        self.ended.add(
            (
                found.run,
                found.prompt_tokens,
                found.tokens,
                found.deliveries,
                begin - (self._origin_ns or 0),
                UNKNOWN if ttft is None else ttft,
                last,
                now - begin,
            )
        )
        sums.requests += 1
        sums.tokens += found.tokens
        sums.deliveries += found.deliveries
        sums.last_end_ns = max(sums.last_end_ns, now)
        sums.met += self.objectives.met(ttft, tpot, now - begin)
        sums.e2e.add(now - begin)
        if ttft is not None:
            sums.ttft.add(ttft)
        if tpot is not None:
            sums.tpot.add(tpot)

    def _unknown(self, call: str, request: Hashable) -> None:
        if request not in self._skipped:
            self._problems.note(f"{call}() of a request that is not open was ignored: begin_request() comes first")


def _count(tokens: Any) -> int:
    """A number of tokens. Raises ValueError for what is none, and for one on a device: reading it would wait."""
    if getattr(tokens, "is_cuda", False):
        raise ValueError("tokens on a device: reading them would wait for it: give a number")
    return token_count(tokens)
