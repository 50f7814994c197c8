"""Compilation: the compiled form of a hot loop. It is made where that pays, compiled again where that pays too, and
given up where it is wrong, slower or compiled again and again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from torch import nn
from torch.profiler import record_function

from rooflight.studies.compiling.hot.backend import CHECKED_RUNS, falling_back, recompile_reason
from rooflight.studies.compiling.hot.calls import Kind, mark_dynamic
from rooflight.studies.compiling.hot.gain import remember_outcome
from rooflight.studies.compiling.hot.plan import Entry, Plan, planned
from rooflight.studies.compiling.hot.state import CallKind, HotOptions, Seen

MOST_SIZES: Final = 16
STORM: Final = 4
"""So many recompilations that nobody planned are too many."""
_STORM_IN_TRIAL: Final = 2
"""By the first one, Dynamo makes dynamic what changes."""


@dataclass(slots=True)
class Call:
    """A call that is observed, begun at ``since``. ``compiled_again``: code was compiled in it that nobody planned."""

    key: Kind
    kind: CallKind
    sizes: tuple[Any, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    since: float
    compiled_again: bool = False


class Compilation:
    """What is compiled of a loop. ``now`` is the call that is observed; ``watch_again`` is called where torch compiles
    code that does not pay.
    """

    def __init__(self, entry: Entry, options: HotOptions, seen: Seen, watch_again: Callable[[], None]) -> None:
        self.plan: Plan | None = None
        self.now: Call | None = None
        self.modules: dict[int, tuple[nn.Module, int]] = {}
        """The modules that a function calls, and how often in a call."""
        self._entry = entry
        self._options = options
        self._seen = seen
        self._watch_again = watch_again
        self._meant = False  # whether the call that runs is to compile
        self._why_again = ""
        self._reasons: list[str] = []  # of frames that Dynamo could not trace

    def forget_refused(self) -> None:
        """Have Dynamo forget the graphs that it was not allowed to compile."""
        if self.plan is not None and self.plan.backend.forget_refused():
            for kind in self._seen.kinds.values():  # code for any size was not for that of a call that was refused
                kind.only_sizes_seen()

    def end(self, call: Call) -> None:
        """Note that the call has ended."""
        self.now = None
        if call.compiled_again:
            call.kind.compile_s = (call.kind.compile_s or 0.0) + self._options.clock() - call.since

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, compiled: bool) -> Any:
        """Run the function, compiled or not."""
        if self.plan is None:
            return self._entry.eager(*args, **kwargs)
        return self.plan.run(args, kwargs, compiled=compiled)

    def compile(self, call: Call) -> Any:
        """Compile the function by running it, with the dimensions dynamic in which calls of this kind differ."""
        kind, clock = call.kind, self._options.clock
        begin = clock()  # planning imports Dynamo
        try:
            if self.plan is None:
                self.plan = planned(kind, self._seen, self._entry, self.modules, self._options, self._allowed)
        except ValueError as error:
            kind.give_up(str(error))
            return self.run(call.args, call.kwargs, compiled=False)
        backend, graphs, self._meant = self.plan.backend, self.plan.backend.graphs, True
        mark_dynamic(kind.sizes, kind.inside, call.args, call.kwargs)
        self._reasons.clear()
        try:
            with self.traced("compiling"):
                out = self.plan.run(call.args, call.kwargs, compiled=True)
        finally:
            self._meant = False
        kind.compile_s = clock() - begin
        kind.spent_s = 0.0
        kind.any_size = len(kind.sizes) > 1
        kind.compiled_sizes = [*kind.compiled_sizes, call.sizes][-MOST_SIZES:]
        kind.state, kind.recompiles = "trying", 0
        self._begin_trial(kind, -CHECKED_RUNS)
        if backend.graphs == graphs and (self._reasons or not graphs):  # else there may be code for it already
            why = f": {self._reasons[-1]}" if self._reasons else ""
            kind.give_up(backend.failed or f"torch.compile captured no graph of it{why}")
        self.reject_wrong(kind)
        self._seen.what = self.plan.what
        return out

    @contextmanager
    def traced(self, what: str) -> Iterator[None]:
        """Name the block in profiles; what Dynamo cannot trace in it runs eagerly."""
        with record_function(f"rooflight.hot {self._seen.name}: {what}"), falling_back(self._reasons):
            yield

    def _begin_trial(self, kind: CallKind, tried: int) -> None:
        kind.tried = tried
        kind.compiled_s.clear()
        kind.compiled_at = self._options.clock()

    # -- compiled again ------------------------------------------------------------------------------------------------

    def _allowed(self) -> bool:
        """In a call meant to compile, where it pays, or in a trial whose dynamic sizes may be all that changes."""
        if self._meant:
            return True
        call, seen = self.now, self._seen
        if call is None or not call.compiled_again:  # all graphs of a call count once
            seen.recompiles += 1
            self._why_again = recompile_reason()
        if call is None:
            again, kinds = seen.recompiles, list(seen.kinds.values())
        else:
            call.kind.recompiles += not call.compiled_again
            call.compiled_again = True
            if call.kind.state == "trying":
                return call.kind.recompiles < _STORM_IN_TRIAL
            again, kinds = call.kind.recompiles, [call.kind]
        known = [each for each in kinds if each.state == "compiled"]
        if again <= STORM and known and self._gained_s(known) >= again * max(each.compile_s or 0.0 for each in known):
            return True
        self._watch_again()
        return False

    def _gained_s(self, kinds: Collection[CallKind]) -> float:
        share = min(1 - 1 / (kind.speedup or 1.0) for kind in kinds)
        left = None if self.now is None else self._seen.left(self.now.kind)
        if self.now is not None and left is not None:
            return share * left * statistics.median(self.now.kind.eager_s)
        return share * (self._options.clock() - max(kind.compiled_at for kind in kinds))

    def compiled_again(self, kind: CallKind) -> None:
        """After a run that torch compiled code for once more: begin the trial anew, or end it if that is too often."""
        if kind.recompiles < _STORM_IN_TRIAL:
            self._begin_trial(kind, 1 - CHECKED_RUNS)  # this run was the first one that is compared
            return
        why = self._why_again or "for no reason that it gives"
        self._roll_back(kind, f"torch compiles it anew again and again: {why}")
        remember_outcome(kind)

    # -- given up ------------------------------------------------------------------------------------------------------

    def reject_wrong(self, kind: CallKind) -> None:
        """Give up what does not compile, or is not the same as eager."""
        assert self.plan is not None
        backend = self.plan.backend
        self._seen.checked, self._seen.error = backend.checked, backend.error
        if backend.wrong:
            self._roll_back(kind, f"compiled, it is not the same: {backend.wrong}")
            remember_outcome(kind)
        elif backend.failed:
            self._roll_back(kind, backend.failed)

    def compare(self, kind: CallKind) -> None:
        """End a trial once it is clear which side is faster."""
        match kind.faster(self._options.clock()):
            case "compiled":
                kind.state = "compiled"
            case "eager":
                self._roll_back(kind, f"compiled, it takes {1 / (kind.speedup or 1):.2f} times as long")
        remember_outcome(kind)

    def _roll_back(self, kind: CallKind, reason: str) -> None:
        assert self.plan is not None
        self.plan.switch(on=False)
        kind.give_up(reason)
