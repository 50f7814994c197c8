"""HotLoop: one function or module that is called again and again: watched, compiled where that pays, and tried."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from threading import Lock
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from torch.compiler import is_dynamo_compiling
from torch.profiler import record_function

from rooflight.sources.capture.record.watching import Watch
from rooflight.studies.compiling.hot.calls import call_kind, mode_of, note_inside, passes_back, synchronize
from rooflight.studies.compiling.hot.compilation import MOST_SIZES, STORM, Call, Compilation
from rooflight.studies.compiling.hot.detector import HotPath
from rooflight.studies.compiling.hot.gain import outlook
from rooflight.studies.compiling.hot.plan import Entry, outermost_modules
from rooflight.studies.compiling.hot.state import MOST_TRIED, TRAINS, CallKind, HotOptions, Seen

_TRIED: Final = (False, True, True, False, False, True)
"""Which runs of a trial are compiled: each side is first as often as last."""
_LEAST: Final = 3
_MOST_KINDS: Final = 32
_LATER: Final = (GeneratorType, CoroutineType, AsyncGeneratorType)
_OBSERVING_S: Final = 4e-6
_MOST_SKIPPED: Final = 100

_loops: weakref.WeakSet[HotLoop] = weakref.WeakSet()


def _in_forked_child() -> None:
    for loop in _loops:
        loop.forget_call()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)


class Timing:
    """Times of a loop's runs: until the result is there, or until the next call where a backward pass may follow.
    ``compare`` is called after each time of a kind in its trial.
    """

    def __init__(self, options: HotOptions, compare: Callable[[CallKind], None]) -> None:
        self._options = options
        self._compare = compare
        self.open_ended = False  # whether runs are timed until the next call
        self._open: tuple[Call, list[float], float] | None = None  # a run whose time ends with the next call

    def returned(self, call: Call, samples: list[float], begin: float, out: Any) -> float | None:
        """The time of a run that began at ``begin`` and returned ``out``, which is added to ``samples``; None where the
        time does not end with the run.
        """
        if type(out) in _LATER:
            call.kind.give_up("it returns a generator or coroutine, whose work comes later")
            return None
        if passes_back(out):
            self._open = call, samples, begin
            self.open_ended = True
            return None
        synchronize(out)
        taken = self._options.clock() - begin
        self._note(call, samples, taken)
        return taken

    def next_call(self) -> None:
        """End the time of the run before."""
        if self._open is not None:
            (call, samples, begin), self._open = self._open, None
            self._note(call, samples, self._options.clock() - begin)

    def forget(self) -> None:
        """Note no time of the run before."""
        self._open = None

    def _note(self, call: Call, samples: list[float], taken: float) -> None:
        if call.compiled_again:
            return  # times of compiling compare nothing
        samples.append(taken)
        del samples[:-MOST_TRIED]
        if call.kind.calls >= self._options.hot_threshold:
            call.kind.spent_s += taken
        if call.kind.state == "trying":
            self._compare(call.kind)


class HotLoop:
    """The calls of one function or module. ``call`` takes the place of the eager one until all is decided.

    One call at a time is observed: calls of other threads meanwhile, and those that the function makes of itself, run
    eagerly.
    """

    def __init__(self, entry: Entry, options: HotOptions) -> None:
        self.entry = entry
        self.options = options
        self.seen = Seen(entry.name, options.expected_runs)
        self.compilation = Compilation(entry, options, self.seen, self.watch_again)
        self._timing = Timing(options, self.compilation.compare)
        self._eager = entry.eager
        self._busy = Lock()
        self._skip = 0  # calls that are not observed, before the next one that is
        self._same_kind = 0  # calls in a row that were of decided kinds
        self._returns = 0  # how often a settled loop had to be watched again
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
            if self.compilation.now is not None:
                self.compilation.end(self.compilation.now)
            self._busy.release()

    def stop(self) -> None:
        """Give the function or module back as it was."""
        if self.compilation.plan is not None:
            self.compilation.plan.switch(on=False)
        self.entry.bind(self._eager)

    def watch_again(self) -> None:
        """Observe a settled loop once more."""
        self._same_kind, self.seen.settled = 0, False
        self._returns += 1
        self.entry.bind(self.call)

    # -- one call ------------------------------------------------------------------------------------------------------

    def _observed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen, options = self.seen, self.options
        seen.calls += 1
        key, sizes = call_kind(args, kwargs, self.entry.module)
        kind = seen.kinds.get(key)
        if kind is None:
            if len(seen.kinds) >= _MOST_KINDS:
                return self.compilation.run(args, kwargs, compiled=False)
            kind = seen.kinds[key] = CallKind(next_sample=max(2, options.hot_threshold))
        call = Call(key, kind, sizes, args, kwargs, options.clock())
        self.compilation.now = call
        if self.compilation.plan is not None:
            self.compilation.forget_refused()
        kind.calls += 1
        self._timing.next_call()
        if kind.decided and (kind.state == "eager" or kind.covers(sizes)):
            self._same_kind += 1
            if self._same_kind == options.hot_threshold:
                self._settle()
            return self.compilation.run(args, kwargs, compiled=kind.state == "compiled")
        self._same_kind, seen.settled = 0, False
        if kind.calls <= _LEAST:
            note_inside(kind.inside, key, args, kwargs)
        out = self._undecided(call)
        if sizes not in kind.sizes and len(kind.sizes) < MOST_SIZES:
            kind.sizes.append(sizes)  # a call that raised has sizes that say nothing
        return out

    def _undecided(self, call: Call) -> Any:
        kind = call.kind
        match kind.step(call.sizes, self.options, self.seen.left(kind)):
            case "watch":
                return self._watched(call)
            case "record":
                return self._recorded(call)
            case "compile":
                return self.compilation.compile(call)
            case "try":
                return self._tried(call)
        return self._timed(call, kind.eager_s if kind.calls > 1 else [], compiled=False)

    def _timed(self, call: Call, samples: list[float], *, compiled: bool) -> Any:
        begin = self.options.clock()
        out = self.compilation.run(call.args, call.kwargs, compiled=compiled)
        taken = self._timing.returned(call, samples, begin, out)
        if taken is not None and call.kind.state in {"watching", "hot"} and self.compilation.plan is None:
            self._skip_after(call.kind, taken)
        return out

    def _skip_after(self, kind: CallKind, taken: float) -> None:
        """Leave so many calls unobserved that observing costs 0.5 % of their time; they are taken for the like."""
        if kind.calls >= self.options.hot_threshold and taken < 200 * _OBSERVING_S:
            self._skip = min(_MOST_SKIPPED, int(200 * _OBSERVING_S / max(taken, 1e-7)))
            kind.spent_s += self._skip * taken
            kind.calls += self._skip
            self.seen.calls += self._skip

    def _watched(self, call: Call) -> Any:
        kind, modules = call.kind, self.compilation.modules
        kind.next_sample = kind.calls + 2 ** len(kind.digests)
        watch, inside = Watch(), nullcontext() if self.entry.module is not None else outermost_modules(modules)
        with record_function(f"rooflight.hot {self.seen.name}: watching"), inside, watch:
            out = self.compilation.run(call.args, call.kwargs, compiled=False)
        kind.digests.append(watch.digests()[1])
        kind.operations, kind.first_ops = max(kind.operations, len(watch)), tuple(watch.names[:8])
        kind.backward |= watch.backward
        kind.judge()
        if kind.state == "hot" and watch.backward and self.entry.module is None and not modules:
            kind.give_up(TRAINS)
        if kind.state == "hot" and self.options.on_hot is not None:
            self.options.on_hot(HotPath(kind.operations, kind.first_ops, kind.calls, iteration=True))
        return out

    def _recorded(self, call: Call) -> Any:
        from rooflight.sources.capture.record.recorder import record

        kind, any_compiled = call.kind, "torch._dynamo" in sys.modules
        with (
            record_function(f"rooflight.hot {self.seen.name}: recording"),
            record(self.entry.module, phases=False, compiled_eagerly=any_compiled) as recording,
        ):
            out = self.compilation.run(call.args, call.kwargs, compiled=False)
        kind.expected = outlook(
            call.key, kind, self.entry, recording.session, self.options,
            open_ended=self._timing.open_ended, left=self.seen.left(kind),
        )  # fmt: skip
        return out

    def _tried(self, call: Call) -> Any:
        kind = call.kind
        kind.tried += 1
        if checked := kind.tried <= 0:
            with self.compilation.traced("trying"):
                out = self.compilation.run(call.args, call.kwargs, compiled=True)
        else:
            compiled = _TRIED[(kind.tried - 1) % len(_TRIED)]
            if kind.tried == 1:
                kind.eager_s.clear()
            with record_function(f"rooflight.hot {self.seen.name}: trying"):
                out = self._timed(call, kind.compiled_s if compiled else kind.eager_s, compiled=compiled)
        if call.compiled_again:
            self._timing.forget()
            self.compilation.compiled_again(kind)
        if checked:
            self.compilation.reject_wrong(kind)
        return out

    def _settle(self) -> None:
        decided = [(key, kind) for key, kind in self.seen.kinds.items() if kind.decided]
        compiled = any(kind.state == "compiled" for _, kind in decided)
        if compiled and self._returns > STORM:
            return
        self.seen.settled = True
        if not compiled:
            self.stop()
            return
        assert self.compilation.plan is not None
        on, off = ({mode_of(key) for key, kind in decided if kind.state == state} for state in ("compiled", "eager"))
        self.entry.bind(self.compilation.plan.in_modes(on, off, self.entry.module) or self.call)
