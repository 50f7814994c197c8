"""Hooks in the methods of an engine, by a mapping, and taking them out again; and the mappings that are known by name.

A hook is an attribute of the engine's object that stands before the method of its class. ``forward`` of a torch module
is hooked as torch does it, since code may call the module while it is compiled.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable
from functools import update_wrapper
from threading import get_ident
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, NamedTuple
from weakref import ref

from rooflight.studies.inference.config import ENGINE_METHODS
from rooflight.studies.inference.engines.mapping import (
    Bucket,
    Call,
    EngineMapping,
    EngineSteps,
    Makes,
    Measures,
    Role,
    Run,
    Step,
)
from rooflight.studies.inference.engines.sglang import SGLANG
from rooflight.studies.inference.engines.transformers import CONTINUOUS_BATCHING, GENERATE
from rooflight.studies.inference.engines.vllm import VLLM, VLLM_CORE, VLLM_LLM

_BY_NAME: Final[dict[str, Role]] = {
    "step": Step(optional=True),
    "prefill": Bucket("prefill", step_of_phase="prefill", optional=True),
    "decode": Bucket("decode", step_of_phase="decode", optional=True),
} | {name: Bucket(bucket, optional=True) for name, bucket in ENGINE_METHODS.items()}

PHASE_METHODS: Final = EngineMapping(
    name="phase methods",
    methods=_BY_NAME,
    about="engines whose methods are called as the phases of a step; prefill and decode are steps where none is open",
)
"""For any engine: its methods whose names are known."""

_known: Final[dict[str, EngineMapping]] = {}
_by_class: Final[dict[str, EngineMapping]] = {}


def register_engine_mapping(mapping: EngineMapping) -> EngineMapping:
    """Make a mapping known by its name, and for engines of its classes. Returns it. Raises ValueError if the name or a
    class has a mapping already.
    """
    if mapping.name in _known:
        raise ValueError(f'there is a mapping "{mapping.name}" already: give another name')
    for name in mapping.classes:
        if name in _by_class:
            raise ValueError(f'{name} has the mapping "{_by_class[name].name}" already')
    _known[mapping.name] = mapping
    _by_class.update(dict.fromkeys(mapping.classes, mapping))
    return mapping


for _mapping in (PHASE_METHODS, GENERATE, CONTINUOUS_BATCHING, VLLM, VLLM_CORE, VLLM_LLM, SGLANG):
    register_engine_mapping(_mapping)


def mapping_for(engine: Any, given: EngineMapping | str | None) -> EngineMapping:
    """The mapping given, by itself or by its name; else that of the engine's class, or of a class that it is derived
    from; else that of methods with known names. Raises ValueError if there is none.
    """
    if isinstance(given, EngineMapping):
        return given
    if isinstance(given, str):
        if given not in _known:
            raise ValueError(f'there is no mapping "{given}": there are {", ".join(_known)}')
        return _known[given]
    if given is not None:
        raise ValueError(f"mapping is a {type(given).__name__}: give an EngineMapping, the name of one, or None")
    for kind in type(engine).__mro__:
        found = _by_class.get(f"{kind.__module__}.{kind.__qualname__}")
        if found is not None:
            return found
    return PHASE_METHODS


_SHOWN: Final = 20
_LATER: Final = (CoroutineType, AsyncGeneratorType, GeneratorType)


class AttachedEngine:
    """An engine hooked by a mapping, by the name of one, or by the one that is registered for its class. Raises
    ValueError if there is none, and if methods are missing or cannot be timed.
    """

    def __init__(self, profiler: Measures, engine: Any, mapping: EngineMapping | str | None) -> None:
        self.engine = _reference(engine)
        self._steps = EngineSteps(profiler, self._attach_part)
        self._steps.detach_parts = self._detach_parts
        self._hooks: list[Any] = []
        self._parts: list[_Part] = []
        chosen = mapping_for(engine, mapping)
        self._hook_all(engine, chosen, self._hooks)
        others = [name for name in _methods_of(engine) if name not in chosen.methods]
        self.untimed = f"{type(engine).__name__} ({_few(others)})" if others and chosen is PHASE_METHODS else ""

    def remove(self) -> None:
        """Take the hooks out; a step that they have open ends, if it is this thread's."""
        if not self._steps.elsewhere:
            self._steps.end_step()
            self._steps.end_run()
        self._detach_parts(all_of_them=True)
        _remove(self._hooks)

    def _attach_part(self, part: Any, mapping: EngineMapping) -> None:
        self._parts = [each for each in self._parts if each.owner() is not None]
        if any(each.owner() is part for each in self._parts):
            return
        hooks: list[Any] = []
        try:
            self._hook_all(part, mapping, hooks)
        except Exception as error:
            self._steps.profiler.problems.error("attach_engine", error)
        else:
            self._parts.append(_Part(_reference(part), hooks, self._steps.in_run))

    def _detach_parts(self, *, all_of_them: bool = False) -> None:
        for part in self._parts:
            if all_of_them or part.of_run:
                _remove(part.hooks)
        self._parts = [part for part in self._parts if part.hooks]

    def _hook_all(self, engine: Any, mapping: EngineMapping, hooks: list[Any]) -> None:
        owner = _owner_at(engine, mapping)
        found = [_find(owner, path, role, mapping) for path, role in mapping.methods.items()]
        methods = [each for each in found if each is not None]
        if not methods:
            raise ValueError(
                f'mapping "{mapping.name}": {type(owner).__name__} has none of its methods '
                f"({_few(mapping.methods)}): it has {_few(_methods_of(owner))}"
            )
        for each in methods:
            _refuse_what_cannot_be_timed(each, mapping)
        try:
            for each in methods:
                hooks.append(_hook(each, self._steps))
                if isinstance(each.role, Makes) and each.role.now is not None:
                    part = getattr(each.owner, each.role.now, None)
                    if part is not None:
                        self._attach_part(part, each.role.mapping)
        except BaseException:
            _remove(hooks)
            raise


class _Part(NamedTuple):
    owner: Callable[[], Any]
    hooks: list[Any]
    of_run: bool


class _Method(NamedTuple):
    owner: Any
    name: str
    path: str
    role: Role


def _reference(what: Any) -> Callable[[], Any]:
    try:
        return ref(what)
    except TypeError:
        return lambda: what


def _owner_at(engine: Any, mapping: EngineMapping) -> Any:
    owner = engine
    for part in filter(None, mapping.at.split(".")):
        owner = getattr(owner, part, None)
        if owner is None:
            raise ValueError(f'mapping "{mapping.name}": {type(engine).__name__} has no {mapping.at}: {mapping.about}')
    return owner


def _find(engine: Any, paths: str, role: Role, mapping: EngineMapping) -> _Method | None:
    """The method at the first path that there is. Raises ValueError if there is none and it is not optional."""
    for path in paths.split("|"):
        *parts, name = path.split(".")
        owner = engine
        for part in parts:
            owner = getattr(owner, part, None)
        if owner is not None and callable(getattr(owner, name, None)):
            return _Method(owner, name, path, role)
    if role.optional:
        return None
    near = difflib.get_close_matches(paths.rsplit(".", maxsplit=1)[-1], _methods_of(engine), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(
        f'mapping "{mapping.name}": {type(engine).__name__} has no method {paths}: '
        f"it has {_few(_methods_of(engine))}{hint}"
    )


def _refuse_what_cannot_be_timed(method: _Method, mapping: EngineMapping) -> None:
    where = f'mapping "{mapping.name}": {type(method.owner).__name__}.{method.name}'
    function = getattr(method.owner, method.name)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ValueError(
            f"{where} is asynchronous: other tasks run in its time. Give the method that it calls for the work"
        )
    if inspect.isgeneratorfunction(function) and not isinstance(method.role, Run):
        raise ValueError(
            f"{where} is a generator: what takes its items runs in its time. It can be a Run; give the methods that it "
            "calls for steps and buckets"
        )
    if inspect.isclass(method.owner) or not isinstance(getattr(method.owner, "__dict__", None), dict):
        what = "is a class" if inspect.isclass(method.owner) else "has no attributes of its own (__slots__)"
        raise ValueError(
            f"{where} cannot be hooked, since its owner {what}: give the engine's object, or open buckets in the "
            "engine (cpu_bucket_timer)"
        )


def _methods_of(owner: Any) -> list[str]:
    found = []
    for name in dir(owner):
        try:
            if not name.startswith("__") and inspect.isroutine(inspect.getattr_static(owner, name)):
                found.append(name)
        except AttributeError:
            continue
    own = [name for name in found if not name.startswith("_")]
    return own or found


def _few(names: Iterable[str]) -> str:
    names = list(names)
    return (", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")) or "none"


def _remove(hooks: list[Any]) -> None:
    while hooks:
        hooks.pop().remove()


def _hook(method: _Method, steps: EngineSteps) -> Any:
    torch = sys.modules.get("torch")
    if method.name == "forward" and torch is not None and isinstance(method.owner, torch.nn.Module):
        from rooflight.sources.capture.time.timed_calls import watch_calls

        owner, timed = _reference(method.owner), _Timed(method, steps)
        return watch_calls(method.owner, lambda call, args, kwargs: timed(owner(), call, args, kwargs))
    return MethodHook(method, steps)


class _Timed:
    """Calls of one method, and what its role does before and after. A role's errors are problems, and go no further."""

    def __init__(self, method: _Method, steps: EngineSteps) -> None:
        self._role, self._steps = method.role, steps
        self._path = method.path

    def __call__(self, owner: Any, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # all in one function: between heavy ops each call of another costs as much as the rest
        steps, role = self._steps, self._role
        if steps.thread and steps.thread != get_ident() and self.passes():
            return method(*args, **kwargs)
        call = Call(owner, args, kwargs, steps.notes)
        try:
            try:
                role.enter(steps, call)
            except Exception as error:
                self._note(error)
            call.result = result = method(*args, **kwargs)
        except BaseException:
            self.leave(call, raised=True)
            raise
        if isinstance(result, _LATER):
            self._steps.profiler.problems.note(
                f"attach_engine: {self._path} returned a {type(result).__name__}: only making it was timed"
            )
        try:
            role.leave(steps, call, raised=False)
        except Exception as error:
            self._note(error)
        return call.result

    def passes(self) -> bool:
        """Whether this call is not to be timed: another thread has the run or step."""
        if self._role.in_any_thread or not self._steps.elsewhere:
            return False
        self._steps.profiler.problems.note(
            f"attach_engine: {self._path} was called in another thread than the open run's: it was not timed there"
        )
        return True

    def begin(self, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        call = Call(owner, args, kwargs, self._steps.notes)
        try:
            self._role.enter(self._steps, call)
        except Exception as error:
            self._note(error)
        return call

    def leave(self, call: Call, *, raised: bool) -> None:
        try:
            self._role.leave(self._steps, call, raised=raised)
        except Exception as error:
            self._note(error)

    def _note(self, error: Exception) -> None:
        self._steps.profiler.problems.error(f"attach_engine: {self._path}", error)


class MethodHook:
    """Stands before a method of one object. Copies and pickles of the object have its class's method instead."""

    def __init__(self, method: _Method, steps: EngineSteps) -> None:
        self._owner = _reference(method.owner)
        self._name = method.name
        self._timed = _Timed(method, steps)
        self._before = vars(method.owner).get(method.name)
        self._call: Callable[..., Any] = getattr(method.owner, method.name)
        self._removed = False
        self._step = steps.profiler.step
        self._only_in_steps = isinstance(method.role, Bucket) and method.role.is_only_in_steps
        self._is_run_of_items = inspect.isgeneratorfunction(self._call)
        torch: Any = sys.modules.get("torch")
        self._is_compiling: Callable[[], bool] = bool if torch is None else torch.compiler.is_compiling
        update_wrapper(self, self._call, updated=())
        vars(method.owner)[method.name] = self
        if getattr(method.owner, method.name) is not self:
            self.remove()
            raise ValueError(f"{type(method.owner).__name__}.{method.name} is a property: it cannot be hooked")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The method, timed by its role."""
        if self._removed or (self._only_in_steps and not self._step.measuring) or self._is_compiling():
            return self._call(*args, **kwargs)
        if self._is_run_of_items:
            return self._items(args, kwargs)
        return self._timed(self._owner(), self._call, args, kwargs)

    def _items(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A generator that is a run: from when its first item is asked for to its end."""
        if self._timed.passes():
            return (yield from self._call(*args, **kwargs))
        call = self._timed.begin(self._owner(), args, kwargs)
        raised = True
        try:
            result = yield from self._call(*args, **kwargs)
            raised = False
            return result
        finally:
            self._timed.leave(call, raised=raised)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner(), self._name)

    def remove(self) -> None:
        """Take it out. Where another hook stands before it, it is left in place and only calls the method."""
        self._removed = True
        owner = self._owner()
        if owner is None or vars(owner).get(self._name) is not self:
            return
        before = self._before
        while isinstance(before, MethodHook) and before._removed:
            before = before._before
        if before is None:
            del vars(owner)[self._name]
        else:
            vars(owner)[self._name] = before
