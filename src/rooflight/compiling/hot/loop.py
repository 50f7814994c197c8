"""HotLoop: one function or module that is called again and again: watched, compiled where that pays, tried and kept."""

from __future__ import annotations

import os
import statistics
import sys
import weakref
from contextlib import nullcontext
from functools import partial
from threading import Lock
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.profiler import record_function

from rooflight.capture.record.watching import Watch
from rooflight.compiling.beside import worker
from rooflight.compiling.hot.backend import CHECKED_RUNS, CheckedBackend
from rooflight.compiling.hot.calls import call_kind, mode_of, passes_back, synchronize
from rooflight.compiling.hot.detector import HotPath
from rooflight.compiling.hot.dynamo import falling_back
from rooflight.compiling.hot.gain import outlook, remember_outcome
from rooflight.compiling.hot.plan import Entry, Inductor, Plan, outermost_modules, planned, recompile_reason
from rooflight.compiling.hot.result import MOST_TRIED, CallKind, HotOptions, Seen
from rooflight.compiling.hot.sizes import mark, note_inside
from rooflight.compiling.hot_beside import Beside, cost_s

_TRIED: Final = (False, True, True, False, False, True)
"""Which runs of a trial are compiled: each side is first as often as last."""
_LEAST: Final = 3
_MOST_KINDS: Final = 32
_MOST_SIZES: Final = 16
_MOST_SAMPLES: Final = 6
_LATER: Final = (GeneratorType, CoroutineType, AsyncGeneratorType)
_STORM: Final = 4
"""So many recompilations that nobody planned are too many."""
_STORM_IN_TRIAL: Final = 2
"""By the first one, Dynamo makes dynamic what changes."""
_PAYS: Final = 1.05
_OBSERVING_S: Final = 4e-6
_MOST_SKIPPED: Final = 100
_LEAST_COMPILE_S: Final = 4.0
_LEAST_PER_OP_S: Final = 0.01
_MOST_GAINED: Final = 0.5  # of an eager run
_DOUBT: Final = 20.0
"""What is not expected to pay is compiled after it has run this many times longer than compiling takes."""


_loops: weakref.WeakSet[HotLoop] = weakref.WeakSet()


def _in_forked_child() -> None:
    for loop in _loops:
        loop.forget_call()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)


class HotLoop:
    """The calls of one function or module. ``call`` takes the place of the eager one until all is decided.

    One call at a time is observed: calls of other threads meanwhile, and those that the function makes of itself, run
    eagerly.
    """

    def __init__(self, entry: Entry, options: HotOptions) -> None:
        self.entry = entry
        self.options = options
        self.seen = Seen(entry.name)
        self.plan: Plan[CheckedBackend] | None = None
        self._inductor: Inductor | None = None  # of the plan; None for another backend
        self._eager = entry.eager
        self._modules: dict[int, tuple[nn.Module, int]] = {}
        self._busy = Lock()
        self._skip = 0  # calls that are not observed, before the next one that is
        self._compiling = False
        self._now: CallKind | None = None  # of the call that is observed
        self._since = 0.0
        self._compiles_again = False  # whether code of that call was compiled that nobody planned
        self._why_again = ""
        self._reasons: list[str] = []  # of frames that Dynamo could not trace
        self._same_kind = 0  # calls in a row that were of decided kinds
        self._returns = 0  # how often a settled loop had to be watched again
        self._open_ended = False  # whether runs are timed until the next call
        self._open: tuple[CallKind, list[float], float] | None = None  # a run whose time ends with the next call
        if (options.expected_runs or options.hot_threshold + 1) <= options.hot_threshold:
            self.seen.note = f"{options.expected_runs} runs are no more than hot_threshold: they are not observed"
            self.seen.settled = True
        else:
            entry.bind(self.call)
        _loops.add(self)

    @property
    def busy(self) -> bool:
        """Whether a call is observed now."""
        return self._busy.locked()

    def forget_call(self) -> None:
        """In a forked child: the call of a thread that the child does not have."""
        self._busy = Lock()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function, observed unless one observed lately was so short that observing each would show."""
        if is_dynamo_compiling():
            return self._eager(*args, **kwargs)
        if self._skip:
            self._skip -= 1
            return self._eager(*args, **kwargs)
        if not self._busy.acquire(blocking=False):
            return self._eager(*args, **kwargs)
        try:
            return self._observed(args, kwargs)
        finally:
            if self._compiles_again and self._now is not None:
                self._now.compile_s = (self._now.compile_s or 0.0) + self.options.clock() - self._since
            self._now, self._compiles_again = None, False
            self._busy.release()

    def stop(self) -> None:
        """Give the function or module back as it was."""
        if self.plan is not None:
            self.plan.switch(on=False)
        self.entry.bind(self._eager)

    # -- one call ------------------------------------------------------------------------------------------------------

    def _observed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.seen.calls += 1
        key, sizes = call_kind(args, kwargs, self.entry.module)
        kind = self.seen.kinds.get(key)
        if kind is None:
            if len(self.seen.kinds) >= _MOST_KINDS:
                return self._run_eager(args, kwargs)
            kind = self.seen.kinds[key] = CallKind(next_sample=max(2, self.options.hot_threshold))
        self._now, self._since = kind, self.options.clock()
        if self.plan is not None and self.plan.backend.forget_refused():
            for each in self.seen.kinds.values():  # code for any size was not for that of a call that was refused
                each.only_sizes_seen()
        kind.calls += 1
        self._close()
        if kind.decided and (kind.state == "eager" or kind.covers(sizes)):
            self._same_kind += 1
            if self._same_kind == self.options.hot_threshold:
                self._settle()
            return self._run(args, kwargs, compiled=kind.state == "compiled")
        self._same_kind, self.seen.settled = 0, False
        if kind.calls <= _LEAST:
            note_inside(kind, key, args, kwargs)
        out = self._undecided(kind, sizes, args, kwargs)
        if sizes not in kind.sizes and len(kind.sizes) < _MOST_SIZES:
            kind.sizes.append(sizes)  # a call that raised has sizes that say nothing
        return out

    def _undecided(self, kind: CallKind, sizes: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kind.state == "trying" and kind.covers(sizes):
            return self._tried(kind, args, kwargs)
        if kind.state == "watching" and kind.calls >= kind.next_sample:
            if self.options.on_hot is not None or self._worth_a_look(kind, _LEAST_COMPILE_S):
                return self._watched(kind, args, kwargs)
        elif kind.state == "hot" and kind.expected is None:
            if self._worth_a_look(kind, _LEAST_COMPILE_S + _LEAST_PER_OP_S * kind.operations):
                return self._recorded(kind, args, kwargs)
        elif kind.beside is not None and not kind.beside.used:
            return self._compiled_beside(kind, kind.beside, sizes, args, kwargs)
        elif kind.state in {"hot", "compiled", "trying"} and kind.runs_with(sizes) and self._due(kind):
            return self._compiled_somewhere(kind, sizes, args, kwargs)
        return self._timed(kind, kind.eager_s if kind.calls > 1 else [], args, kwargs, compiled=False)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, compiled: bool) -> Any:
        if self.plan is None:
            return self._eager(*args, **kwargs)
        return self.plan.run(args, kwargs, compiled=compiled)

    def _run_eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._run(args, kwargs, compiled=False)

    def _timed(
        self, kind: CallKind, samples: list[float], args: tuple[Any, ...], kwargs: dict[str, Any], *, compiled: bool
    ) -> Any:
        """Run the function, and note its time: until the next call, where a backward pass is to follow."""
        clock = self.options.clock
        begin = clock()
        out = self._run(args, kwargs, compiled=compiled)
        if type(out) in _LATER:
            self._give_up(kind, "it returns a generator or coroutine, whose work comes later")
            return out
        if passes_back(out):
            self._open = kind, samples, begin
            self._open_ended = True
        else:
            synchronize(out)
            taken = clock() - begin
            self._note(kind, samples, taken)
            if kind.state in {"watching", "hot"} and self.plan is None:
                self._skip_after(kind, taken)
        return out

    def _skip_after(self, kind: CallKind, taken: float) -> None:
        """Leave so many calls unobserved that observing costs 0.5 % of their time; they are taken for the like."""
        if kind.calls >= self.options.hot_threshold and taken < 200 * _OBSERVING_S:
            self._skip = min(_MOST_SKIPPED, int(200 * _OBSERVING_S / max(taken, 1e-7)))
            kind.spent_s += self._skip * taken
            kind.calls += self._skip
            self.seen.calls += self._skip

    def _close(self) -> None:
        if self._open is not None:
            kind, samples, begin = self._open
            self._open = None
            self._note(kind, samples, self.options.clock() - begin)

    def _note(self, kind: CallKind, samples: list[float], taken: float) -> None:
        if self._compiles_again or (kind.state == "trying" and worker.busy):
            return  # times of compiling, or beside the worker, compare nothing
        samples.append(taken)
        del samples[:-MOST_TRIED]
        if kind.calls >= self.options.hot_threshold:
            kind.spent_s += taken
        if kind.state == "trying":
            self._compare(kind)

    # -- watching ------------------------------------------------------------------------------------------------------

    def _watched(self, kind: CallKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function, and note the pattern of its operations."""
        kind.next_sample = kind.calls + 2 ** len(kind.digests)
        watch, inside = Watch(), nullcontext() if self.entry.module is not None else outermost_modules(self._modules)
        with record_function(f"rooflight.hot {self.seen.name}: watching"), inside, watch:
            out = self._run_eager(args, kwargs)
        kind.digests.append(watch.digests()[1])
        kind.operations, kind.first_ops = max(kind.operations, len(watch)), tuple(watch.names[:8])
        kind.backward |= watch.backward
        self._judge(kind)
        return out

    def _worth_a_look(self, kind: CallKind, floor_s: float) -> bool:
        """Whether so much time is at stake that compiling may pay, if it takes no less than ``floor_s``."""
        if not kind.eager_s:
            return False
        options = self.options
        if options.expected_runs is None:
            return kind.spent_s >= floor_s / 2
        eager_s, left = statistics.median(kind.eager_s), self._left(kind)
        if eager_s * left * _MOST_GAINED > floor_s:
            return True
        self._give_up(kind, f"{left:.0f} runs of {eager_s:.3g} s gain less than compiling takes")
        return False

    def _left(self, kind: CallKind) -> float:
        """How many runs of a kind are to be expected, this one included."""
        assert self.options.expected_runs is not None
        return max(0.0, (self.options.expected_runs - self.seen.calls + 1) * kind.calls / self.seen.calls)

    def _judge(self, kind: CallKind) -> None:
        """Whether the watched calls of a kind repeat, so that it is hot."""
        most = max(kind.digests.count(each) for each in kind.digests)
        if most < 2 or 2 * most < len(kind.digests):
            if len(kind.digests) >= _MOST_SAMPLES:
                different = len(set(kind.digests))
                self._give_up(kind, f"no pattern: {different} of {len(kind.digests)} watched calls differ")
        elif not kind.operations:
            self._give_up(kind, "it runs no operations of torch")
        else:
            kind.state, kind.spent_s = "hot", 0.0
            if self.options.on_hot is not None:
                self.options.on_hot(HotPath(kind.operations, kind.first_ops, kind.calls, iteration=True))

    def _recorded(self, kind: CallKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function recorded, and ask what compiling it would gain."""
        from rooflight.capture.record.recorder import record

        any_compiled = "torch._dynamo" in sys.modules
        with (
            record_function(f"rooflight.hot {self.seen.name}: recording"),
            record(self.entry.module, phases=False, compiled_eagerly=any_compiled) as recording,
        ):
            out = self._run_eager(args, kwargs)
        key = next(key for key, other in self.seen.kinds.items() if other is kind)
        left = None if self.options.expected_runs is None else self._left(kind)
        kind.expected = outlook(
            key, kind, self.entry, recording.session, self.options, open_ended=self._open_ended, left=left
        )
        return out

    def _due(self, kind: CallKind) -> bool:
        """Whether the next call of a hot kind is to be compiled: by what is left to gain, or, as that is not known,
        once it has run for as long as compiling takes.
        """
        assert kind.expected is not None
        speedup = kind.speedup or kind.expected.speedup
        compile_s = cost_s(kind, speedup, self.options)
        if self.options.expected_runs is not None:
            left = self._left(kind)
            if speedup <= 1:
                self._give_up(kind, f"no gain is expected: {speedup:.2f} times as fast ({kind.expected.source})")
                return False
            if statistics.median(kind.eager_s) * (1 - 1 / speedup) * left <= compile_s:
                self._give_up(kind, f"compiling takes {compile_s:.3g} s, and {left:.0f} runs would gain less")
                return False
            return True
        return kind.spent_s >= compile_s * (1 if speedup >= _PAYS else _DOUBT)

    def _give_up(self, kind: CallKind, reason: str) -> None:
        kind.state, kind.reason = "eager", reason

    # -- compiling -----------------------------------------------------------------------------------------------------

    def _compiled_somewhere(
        self, kind: CallKind, sizes: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Have the function compiled by the worker, from this call's graphs; in this call where it cannot be."""
        begin = self.options.clock()  # planning imports Dynamo
        try:
            if self.plan is None:
                self.plan, self._inductor = planned(
                    kind, self.seen, self.entry, self._modules, self.options, self._allowed
                )
        except ValueError as error:
            self._give_up(kind, str(error))
            return self._run_eager(args, kwargs)
        if self._inductor is None or not self.options.beside:
            return self._first_compiled(kind, sizes, args, kwargs, begin)
        plan, kind.beside = self.plan, Beside(sizes, self.options.clock, begin)
        mark(kind, sizes, args, kwargs)
        with record_function(f"rooflight.hot {self.seen.name}: tracing"), falling_back(self._reasons):
            return kind.beside.run(
                plan, self._inductor, self.options.limit_s, lambda capturing: capturing.run(args, kwargs, compiled=True)
            )

    def _compiled_beside(
        self, kind: CallKind, beside: Beside, sizes: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the function eagerly until the worker has compiled its graphs."""
        if beside.ready(sizes):
            return self._first_compiled(kind, sizes, args, kwargs, self.options.clock())
        return self._timed(kind, beside.eager_s, args, kwargs, compiled=False)

    def _first_compiled(
        self, kind: CallKind, sizes: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], begin: float
    ) -> Any:
        """Compile the function by running it, with the dimensions dynamic in which calls of this kind differ."""
        assert self.plan is not None
        clock, plan, beside = self.options.clock, self.plan, kind.beside
        mark(kind, sizes, args, kwargs)
        graphs, self._compiling = plan.backend.graphs, True
        self._reasons.clear()
        try:
            with record_function(f"rooflight.hot {self.seen.name}: compiling"), falling_back(self._reasons):
                run = partial(plan.run, args, kwargs, compiled=True)
                out = run() if beside is None or self._inductor is None else beside.switch(self._inductor, run)
        finally:
            self._compiling = False
        kind.compile_s = clock() - begin + (0.0 if beside is None else beside.capture_s)
        kind.spent_s = 0.0
        kind.any_size = len(kind.sizes) > 1
        kind.compiled_sizes = [*kind.compiled_sizes, sizes][-_MOST_SIZES:]
        kind.state, kind.tried, kind.recompiles = "trying", -CHECKED_RUNS, 0
        kind.compiled_s.clear()
        kind.compiled_at = clock()
        if plan.backend.graphs == graphs and (self._reasons or not graphs):  # else there may be code for it already
            why = f": {self._reasons[-1]}" if self._reasons else ""
            self._give_up(kind, plan.backend.failed or f"torch.compile captured no graph of it{why}")
        self._reject_wrong(kind)
        self.seen.what = plan.what
        return out

    def _allowed(self) -> bool:
        """Whether torch may compile a graph now: in a call that is meant to, or where compiling once more pays. In
        a trial it may, until it is clear that sizes that Dynamo makes dynamic are not all that changes.
        """
        if self._compiling:
            return True
        kind = self._now
        if kind is None or not self._compiles_again:  # all graphs of a call count once
            self.seen.recompiles += 1
            self._why_again = recompile_reason()
        if kind is not None:
            kind.recompiles += not self._compiles_again
            self._compiles_again = True
            if kind.state == "trying":
                return kind.recompiles < _STORM_IN_TRIAL
        again = self.seen.recompiles if kind is None else kind.recompiles
        kinds = self.seen.kinds.values() if kind is None else [kind]
        known = [each for each in kinds if each.state == "compiled"]
        if again <= _STORM and known and self._gained_s(known) >= again * max(each.compile_s or 0.0 for each in known):
            return True
        self._watch_again()
        return False

    def _gained_s(self, kinds: list[CallKind]) -> float:
        """What compiling these kinds has gained so far, or one of them will have gained in the end if that is known."""
        share = min(1 - 1 / (kind.speedup or 1.0) for kind in kinds)
        if self._now is not None and self.options.expected_runs is not None:
            return share * self._left(self._now) * statistics.median(self._now.eager_s)
        return share * (self.options.clock() - max(kind.compiled_at for kind in kinds))

    def _watch_again(self) -> None:
        self._same_kind, self.seen.settled = 0, False
        self._returns += 1
        self.entry.bind(self.call)

    # -- trying --------------------------------------------------------------------------------------------------------

    def _tried(self, kind: CallKind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function eagerly or compiled, in turns, timed. The first compiled runs are checked, and not timed."""
        if worker.busy and kind.tried >= 0:
            return self._run_eager(args, kwargs)  # times beside the worker compare nothing
        kind.tried += 1
        with record_function(f"rooflight.hot {self.seen.name}: trying"):
            if kind.tried <= 0:
                with falling_back(self._reasons):
                    out = self._run(args, kwargs, compiled=True)
                if self._compiles_again:
                    self._compiled_again(kind)
                self._reject_wrong(kind)
                return out
            compiled = _TRIED[(kind.tried - 1) % len(_TRIED)]
            samples = kind.compiled_s if compiled else kind.eager_s
            if kind.tried <= 1:
                del kind.eager_s[:]
            out = self._timed(kind, samples, args, kwargs, compiled=compiled)
            if self._compiles_again:
                self._compiled_again(kind)
            return out

    def _reject_wrong(self, kind: CallKind) -> None:
        assert self.plan is not None
        backend = self.plan.backend
        self.seen.checked, self.seen.error = backend.checked, backend.error
        if backend.wrong:
            self._roll_back(kind, f"compiled, it is not the same: {backend.wrong}")
            remember_outcome(kind)
        elif backend.failed:
            self._roll_back(kind, backend.failed)

    def _compare(self, kind: CallKind) -> None:
        """End a trial once it is clear which side is faster."""
        match kind.faster(self.options.clock()):
            case "compiled":
                kind.state = "compiled"
            case "eager":
                self._roll_back(kind, "")
        if kind.state == "eager":
            kind.reason = f"compiled, it takes {1 / (kind.speedup or 1):.2f} times as long"
        remember_outcome(kind)

    def _compiled_again(self, kind: CallKind) -> None:
        """After a run that torch compiled code for once more: begin the trial anew, or end it if that is too often."""
        self._open = None
        if kind.recompiles < _STORM_IN_TRIAL:
            kind.tried = 1 - CHECKED_RUNS  # this run was the first one that is compared
            kind.compiled_s.clear()
            kind.compiled_at = self.options.clock()
            return
        why = self._why_again or "for no reason that it gives"
        self._roll_back(kind, f"torch compiles it anew again and again: {why}")
        remember_outcome(kind)

    def _roll_back(self, kind: CallKind, reason: str) -> None:
        assert self.plan is not None
        self.plan.switch(on=False)
        self._give_up(kind, reason)

    # -- decided -------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Take this object out of the way, if all that is called now is decided."""
        decided = [(key, kind) for key, kind in self.seen.kinds.items() if kind.decided]
        compiled = any(kind.state == "compiled" for _, kind in decided)
        if compiled and self._returns > _STORM:
            return
        self.seen.settled = True
        if not compiled:
            self.stop()
            return
        assert self.plan is not None
        on, off = ({mode_of(key) for key, kind in decided if kind.state == state} for state in ("compiled", "eager"))
        self.entry.bind(self.plan.in_modes(on, off, self.entry.module) or self.call)
