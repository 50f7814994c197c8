"""Mappings: what the methods of an engine are to a profiler, so that ``Profiler.attach_engine`` can hook any engine.

A mapping names methods by their path from the engine (``"scheduler.schedule"``) and gives each a *role*: the call is a
run (``Run``), a step (``Step``), or a bucket of one (``Bucket``); or it only shows facts (``Shows``). Readers get the
``Call`` and return facts of the open step: accepted tokens, KV lengths, the phase, drafts, its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from threading import get_ident
from typing import Any, Protocol

from rooflight.studies.inference.facts import DECODE
from rooflight.studies.inference.problems import Problems
from rooflight.studies.inference.serving import Requests
from rooflight.studies.inference.step import StepContext
from rooflight.studies.inference.timers import BucketTimers


class Measures(Protocol):
    """What hooks in an engine need of a ``Profiler``."""

    step: StepContext
    timers: BucketTimers
    requests: Requests
    problems: Problems

    @property
    def in_run(self) -> bool:
        """Whether a run is open."""

    def begin_run(self, bsz: int | None = None, label: str = "decode") -> None:
        """Begin a run."""

    def end_run(self) -> None:
        """End it."""

    def begin_request(self, request_id: Hashable, prompt_tokens: int | None = None) -> None:
        """A request arrives."""

    def request_tokens(self, request_id: Hashable, n: Any = 1) -> None:
        """Tokens are delivered to it."""

    def end_request(self, request_id: Hashable) -> None:
        """It is done."""


class Call:
    """One call of a method. ``owner`` is the object that has the method; ``result`` is None until it returns. ``notes``
    is a dict that the calls of a step share: what one reader puts there, a later one finds.
    """

    __slots__ = ("args", "kwargs", "notes", "owner", "result")

    def __init__(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], notes: dict[str, Any]) -> None:
        self.owner, self.args, self.kwargs, self.notes = owner, args, kwargs, notes
        self.result: Any = None

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument, by its place after ``self`` or by its name."""
        return self.args[place] if place < len(self.args) else self.kwargs.get(name, default)


Reader = Callable[[Call], Any]
"""Gets a fact from a call; None: nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """Facts of the open step that a call shows: ``phase`` as for ``set_step_phase``, ``tokens`` as for
    ``set_step_tokens``, ``kv_lengths`` as for ``set_step_seq_len``, ``batch`` as for ``set_step_batch``; ``drafts``
    returns the arguments of ``set_step_speculation`` (proposed and accepted, depth if the draft is a tree),
    ``kv_cache`` that of ``set_step_kv_cache``.
    """

    phase: Reader | None = None
    tokens: Reader | None = None
    kv_lengths: Reader | None = None
    drafts: Reader | None = None
    batch: Reader | None = None
    kv_cache: Reader | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            reader = getattr(self, each.name)
            if reader is not None and not callable(reader):
                raise ValueError(f"Reads({each.name}={reader!r}): give a function that gets a Call")


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a method is. ``before`` is read when it is called, ``after`` when it has returned. A method that is not
    there is an error, unless it is ``optional``. ``in_any_thread``: calls in other threads than the step's matter too.
    """

    before: Reads | None = None
    after: Reads | None = None
    optional: bool = False
    in_any_thread: bool = False

    def enter(self, steps: EngineSteps, call: Call) -> None:
        """The method is called."""
        if self.before is not None:
            steps.read(self.before, call)

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        """It returned or raised."""
        if self.after is not None and not raised:
            steps.read(self.after, call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shows(Role):
    """The call only shows facts: it is not timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Does(Role):
    """What an engine needs done when the method is ``called``, and when it has ``returned``: then a bucket that was
    opened for the call is closed.
    """

    called: Callable[[EngineSteps, Call], None] | None = None
    returned: Callable[[EngineSteps, Call], None] | None = None

    def enter(self, steps: EngineSteps, call: Call) -> None:
        """The method is called."""
        Role.enter(self, steps, call)
        if self.called is not None:
            self.called(steps, call)

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        """It returned or raised."""
        steps.close(call)
        Role.leave(self, steps, call, raised=raised)
        if self.returned is not None and not raised:
            self.returned(steps, call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Role):
    """The call is a run of ``batch`` sequences, unless one is open already. Steps that are open end with it."""

    batch: Reader | None = None
    label: str = "decode"

    def enter(self, steps: EngineSteps, call: Call) -> None:
        """Begin a run."""
        steps.begin_run(None if self.batch is None else steps.value(self.batch, call), self.label)
        Role.enter(self, steps, call)

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        """End it."""
        Role.leave(self, steps, call, raised=raised)
        steps.end_step(raised=raised)
        steps.end_run()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Role):
    """The call is a step."""

    def enter(self, steps: EngineSteps, call: Call) -> None:
        """Begin a step."""
        steps.begin_step()
        Role.enter(self, steps, call)

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        """End it."""
        Role.leave(self, steps, call, raised=raised)
        steps.end_step(raised=raised)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTest(Role):
    """The loop of steps calls this method before each step, and goes on where it returns something true: a step is the
    time from there to the next call.
    """

    def enter(self, steps: EngineSteps, call: Call) -> None:
        """A step ends."""
        Role.enter(self, steps, call)
        steps.end_step()

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        """The next begins."""
        if call.result and not raised:
            steps.begin_step()
        Role.leave(self, steps, call, raised=raised)


@dataclass(frozen=True, slots=True)
class Bucket(Role):
    """The call is a bucket of the engine, with a name or a reader of one. ``begins_step``: a step begins with the call,
    and the one before ends there if it is still open; ``ends_step``: the step ends with it. ``step_of_phase``: where no
    step is open, the call is a step by itself, of this phase.
    """

    name: str | Reader
    begins_step: bool = field(default=False, kw_only=True)
    ends_step: bool = field(default=False, kw_only=True)
    step_of_phase: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.name or not (isinstance(self.name, str) or callable(self.name)):
            raise ValueError(f"Bucket({self.name!r}): give the name of a bucket, or a function that gets a Call")

    @property
    def is_only_in_steps(self) -> bool:
        """Whether a call outside of measured steps is of no interest."""
        return not (self.begins_step or self.ends_step or self.step_of_phase)

    def enter(self, steps: EngineSteps, call: Call) -> None:
        """Open the bucket."""
        if self.begins_step:
            steps.end_step()
            steps.begin_step()
        elif self.step_of_phase is not None and steps.begin_own_step(self.step_of_phase):
            call.notes[_OWN_STEP] = call
        Role.enter(self, steps, call)
        name = self.name if isinstance(self.name, str) else steps.value(self.name, call)
        steps.open(name, call)

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        """Close it."""
        steps.close(call)
        Role.leave(self, steps, call, raised=raised)
        if self.ends_step or call.notes.get(_OWN_STEP) is call:
            steps.end_step(raised=raised)


_OWN_STEP = "call that is a step by itself"


def bucket_of_phase(call: Call) -> str:
    """The bucket of the model's pass: the phase that a reader noted."""
    return str(call.notes.get("phase", "decode"))


def tell_requests(steps: EngineSteps, request: Any, tokens: int, *, done: bool) -> None:
    """Tokens are delivered to a request, and it may be done; nothing if it began before the engine was attached."""
    if steps.profiler.requests.knows(request):
        if tokens:
            steps.profiler.request_tokens(request, tokens)
        if done:
            steps.profiler.end_request(request)


@dataclass(frozen=True, slots=True)
class Makes(Role):
    """The method makes a part of the engine, which is hooked by a mapping of its own until the run ends, or until
    ``detach()`` if no run is open. ``now``: the attribute with the part that is there when the engine is attached.
    """

    mapping: EngineMapping
    now: str | None = field(default=None, kw_only=True)

    def leave(self, steps: EngineSteps, call: Call, *, raised: bool) -> None:
        """Hook what was made."""
        Role.leave(self, steps, call, raised=raised)
        if not raised and call.result is not None:
            steps.attach_part(call.result, self.mapping)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMapping:
    """The roles of an engine's methods, by path. ``a|b`` is the first of two methods that is there. ``classes`` are
    names of classes, with their modules (``"acme.engine.Engine"``): engines of these, or derived from them, are found
    without naming the mapping once it is registered. ``at`` is the path from the engine given to the object that has
    the methods. ``about`` is one line for people.

    Raises ValueError for what is no path or no role.
    """

    name: str
    methods: Mapping[str, Role]
    classes: Sequence[str] = ()
    at: str = ""
    about: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"EngineMapping(name={self.name!r}): give it a name")
        if not isinstance(self.methods, Mapping) or not self.methods:
            raise ValueError(f'mapping "{self.name}" has no methods: give a dict of paths and roles')
        for path, role in self.methods.items():
            if not isinstance(path, str) or not all(part.isidentifier() for part in path.replace("|", ".").split(".")):
                raise ValueError(f'mapping "{self.name}": {path!r} is no path: give one such as "scheduler.schedule"')
            if not isinstance(role, Role):
                raise ValueError(
                    f'mapping "{self.name}": the role of {path} is {role!r}: give a Run, Step, Bucket("name"), '
                    "LoopTest, Shows or Makes"
                )


@lru_cache(1024)  # a reader of a mapping may name buckets without end
def _label(name: str) -> str:
    return f"engine.{name}"  # of the engine's domain, whatever it looks like


class EngineSteps:
    """Runs and steps of one attached engine. One thread at a time: that of the open run or step. Methods raise nothing
    that a profiler does not; readers of users may raise, and their errors are the profiler's problems.
    """

    def __init__(self, profiler: Measures, attach_part: Callable[[Any, EngineMapping], None]) -> None:
        self.profiler = profiler
        self._step, self._engine_timers = profiler.step, profiler.timers.engine
        self.facts = profiler.step.facts
        self.attach_part = attach_part
        self.detach_parts: Callable[[], None] = lambda: None
        self.notes: dict[str, Any] = {}  # of the open step
        self.state: dict[str, Any] = {}  # of the open run, for roles
        self.thread = 0  # that of the open run or step
        self.phase = DECODE  # of the open step, as roles set it
        self._runs = 0  # calls of methods that are runs, which may be nested
        self._own_run = False
        self._in_step = False
        self._timers: list[tuple[object, Any]] = []

    @property
    def elsewhere(self) -> bool:
        """Whether a run or step is open in another thread."""
        return self.thread not in (0, get_ident())

    # -- runs and steps ------------------------------------------------------------------------------------------------

    def begin_run(self, batch: Any, label: str, *, in_this_thread: bool = True) -> None:
        """Begin a run, unless one is open."""
        self._runs += 1
        self.thread = get_ident() if in_this_thread else 0
        if self._runs == 1:
            self.state.clear()
            self._own_run = not self.profiler.in_run
            if self._own_run:
                self.profiler.begin_run(bsz=batch, label=label)

    @property
    def in_run(self) -> bool:
        """Whether a run of the engine is open."""
        return self._runs > 0

    def end_run(self) -> None:
        """End the run that was begun here."""
        self._runs = max(self._runs - 1, 0)
        if self._runs:
            return
        self.thread = 0
        if self._own_run:
            self._own_run = False
            self.profiler.end_run()
        self.state.clear()
        self.notes.clear()
        self.detach_parts()

    def begin_step(self) -> None:
        """Begin a step. In one that the program has opened, nothing begins."""
        if self._in_step:
            return
        if self._step.is_open:
            self.profiler.problems.note("attach_engine: an engine's step was inside another: only that one is measured")
            return
        self._in_step = True
        self.thread = get_ident()
        self.notes.clear()
        self._step.__enter__()
        self.phase = DECODE

    def begin_own_step(self, phase: str) -> bool:
        """Begin a step of a phase if there is a run but no step. Returns whether it began."""
        if self._in_step or self._step.is_open or not self.profiler.in_run:
            return False
        self.begin_step()
        self.set_phase(phase)
        return True

    def end_step(self, *, raised: bool = False) -> None:
        """End the step that was begun here, and close its buckets."""
        if not self._in_step:
            return
        self._in_step = False
        while self._timers:
            self._timers.pop()[1].__exit__(None, None, None)
        kind = RuntimeError if raised else None
        self._step.__exit__(kind, None, None)
        if not self._runs:
            self.thread = 0

    @property
    def measures(self) -> bool:
        """Whether a step that was begun here is measured."""
        return self._in_step and self._step.measuring

    # -- buckets -------------------------------------------------------------------------------------------------------

    def open(self, name: str | None, key: object) -> None:
        """Open a bucket until ``close(key)``, or the end of the step."""
        if name and self._step.measuring:
            timer = self._engine_timers[_label(name)]
            timer.__enter__()
            self._timers.append((key, timer))

    def close(self, key: object) -> None:
        """Close the bucket opened last with a key."""
        for place in range(len(self._timers) - 1, -1, -1):
            if self._timers[place][0] is key:
                self._timers.pop(place)[1].__exit__(None, None, None)
                return

    # -- facts ---------------------------------------------------------------------------------------------------------

    def set_phase(self, phase: str) -> None:
        """The open step is of a phase."""
        if self.measures:
            self.phase = phase
            self.facts.set_phase(phase)

    def read(self, reads: Reads, call: Call) -> None:
        """Read facts of the open step from a call."""
        if not self.measures:
            return
        facts = self.facts
        for reader, set_fact in (
            (reads.phase, facts.set_phase),
            (reads.tokens, partial(facts.set, "tokens")),
            (reads.kv_lengths, partial(facts.set, "length")),
            (reads.batch, partial(facts.set, "batch")),
            (reads.kv_cache, facts.set_cache),
            (reads.drafts, lambda drafts: facts.set_drafts(*drafts)),
        ):
            if reader is not None:
                value = self.value(reader, call)
                if value is not None:
                    set_fact(value)

    def value(self, reader: Reader, call: Call) -> Any:
        """What a reader gets from a call; None where it fails, which is a problem."""
        try:
            return reader(call)
        except Exception as error:
            name = getattr(reader, "__name__", "a reader")
            self.profiler.problems.note(f"attach_engine: {name}: {type(error).__name__}: {error}")
            return None
