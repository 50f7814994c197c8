"""Timers around the modules of a model, and around functions that they call, which take themselves out again.

In code that torch.compile traces they are left out: it stays whole, and is one bucket (``compiled``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import torch
from torch.compiler import is_dynamo_compiling

from rooflight.sources.capture.time.timed_calls import TimedCalls
from rooflight.studies.inference.engines.collectives import time_collectives
from rooflight.studies.inference.engines.graphs import StandIn, call_within, time_graphs
from rooflight.studies.inference.engines.module_buckets import COMPILED, Placed, buckets_inside, placed_modules
from rooflight.studies.inference.timers import BucketTimers

if TYPE_CHECKING:
    from torch import nn

_FUNCTIONS: Final = (
    ("attn.compute", "attn.rope", ("apply_rotary_pos_emb", "apply_rotary_emb")),
    ("prepare", "attn.mask", ("create_causal_mask", "create_sliding_window_causal_mask")),
)
"""Functions that transformers' modules call by their names in their file, with no module around them: the bucket of
the module that calls them, theirs, and their names.
"""


_CALLERS: Final = frozenset(caller for caller, _, _ in _FUNCTIONS)


class ModelHooks:
    """The hooks of one profiler, in any number of models."""

    def __init__(self, timers: BucketTimers) -> None:
        self._timers = timers
        self._modules: WeakSet[nn.Module] = WeakSet()
        self._models: WeakSet[nn.Module] = WeakSet()
        self._calls = TimedCalls(timers.step, timers.around_model)
        timers.calls.add(self._calls)
        self._handles: list[Any] = []
        self._process_timed = False  # collectives and graphs, which belong to no model

    def has(self, model: Any) -> bool:
        """Whether a model is timed."""
        return model in self._models or model in self._modules

    def attach(self, model: Any, *, lora: bool) -> None:
        """Time the modules of a model. Raises ValueError if that is no module, or is timed already. Modules that it
        shares with a model attached before are timed once.
        """
        if not isinstance(model, torch.nn.Module):
            raise ValueError(f"attach_model takes a torch.nn.Module, not {type(model).__name__}")
        if self.has(model):
            raise ValueError(f"this {type(model).__name__} is attached already: detach() first")
        placed = [each for each in placed_modules(model, lora=lora) if each.module not in self._modules]
        self._say_what_is_unknown(model, placed)
        if lora and not any(each.bucket.endswith(".lora") for each in placed):
            self._timers.problems.note(
                f"attach_model: no layer of {type(model).__name__} has modules of LoRA: its time is the layers'"
            )
        number = len(self._handles)
        try:
            for each in placed:
                # in a place of its own, a class's name or a user's bucket cannot be read as that of the engine's domain
                label = f"model.{each.bucket}"
                self._handles.append(self._calls.around(each.module, label, caller=each.bucket in _CALLERS))
            for caller, bucket, names in _FUNCTIONS:
                files = dict.fromkeys(type(each.module).__module__ for each in placed if each.bucket == caller)
                self._time_functions(files, names, caller, bucket)
            if not self._process_timed:
                for stand_in in chain(time_collectives(self._timers), time_graphs(self._timers)):
                    self._handles.append(stand_in)
        except BaseException:
            self._remove(number)
            raise
        self._modules.update(each.module for each in placed)
        self._models.add(model)
        self._process_timed = True

    def detach(self) -> None:
        """Take all hooks out."""
        self._remove(0)
        self._modules.clear()
        self._models.clear()
        self._process_timed = False

    @contextmanager
    def attached(self, model: Any, *, lora: bool) -> Iterator[None]:
        """Time a model for a while."""
        self.attach(model, lora=lora)
        try:
            yield
        finally:
            self.detach()

    def _remove(self, number: int) -> None:
        while len(self._handles) > number:
            self._handles.pop().remove()

    def _time_functions(self, files: Iterable[str], names: Iterable[str], caller: str, bucket: str) -> None:
        make = partial(_timed, f"model.{caller}", f"model.{bucket}")
        timed = {each.key for each in self._handles if isinstance(each, StandIn)}  # for a model attached before
        for file in files:
            for name in names:
                owner = sys.modules.get(file)
                if callable(getattr(owner, name, None)) and (owner, name) not in timed:
                    self._handles.append(StandIn(owner, name, self._timers, make))

    def _say_what_is_unknown(self, model: nn.Module, placed: Sequence[Placed]) -> None:
        unknown = [each for each in placed if not each.known]
        note = self._timers.problems.note
        if unknown and len(unknown) == len(placed):
            note(
                f"attach_model: no module of {type(model).__name__} has a known name: buckets are classes of modules "
                "(register_module_bucket names them)"
            )
        elif unknown:
            paths = ", ".join(each.path or type(each.module).__name__ for each in unknown[:3]) + (
                ", ..." if len(unknown) > 3 else ""
            )
            note(
                f"attach_model: {len(unknown)} of the modules of {type(model).__name__} have no known name ({paths}): "
                "their buckets are their classes (register_module_bucket names them)"
            )
        compiled = [each.module for each in placed if each.bucket == COMPILED]
        if compiled:
            inside = dict.fromkeys(name for module in compiled for name in buckets_inside(module))
            names = f", which holds {', '.join(inside)}" if inside else ""
            note(
                f"attach_model: torch.compile made parts of {type(model).__name__} one: each is timed as a whole, in "
                f"bucket {COMPILED}{names}"
            )


def _timed(caller: str, label: str, function: Callable[..., Any], served: Sequence[BucketTimers]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():  # is_compiling() takes 3 times as long
            return function(*args, **kwargs)
        if len(served) != 1:
            calling = [timers for timers in served if timers.step.caller == caller]
            return call_within(calling, label, function, args, kwargs)
        timers = served[0]
        if timers.step.caller == caller:  # else this is in a model that is not attached, or nothing is measured
            return timers.around_model[label](function, args, kwargs)
        return function(*args, **kwargs)

    return timed
