"""Plan: which parts of a hot loop are compiled, where calls of them are intercepted, and switching between compiled
parts and their eager originals.
"""

from __future__ import annotations

import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from rooflight.hardware.machine.environment import not_to_be_trusted
from rooflight.studies.compiling.hot.backend import CHECKED_RUNS, CheckedBackend, Inner, guarded
from rooflight.studies.compiling.hot.calls import Mode, call_mode, numbers_vary
from rooflight.studies.compiling.hot.state import TRAINS, CallKind, HotOptions, Seen
from rooflight.studies.compiling.hot.time_box import within

ALIKE: Final = 4
"""So many modules of one class and of the same parameters, in one list, are compiled once instead of with the whole."""

_ISOLATED: Final[dict[str, Any]] = (
    {"isolate_recompiles": True} if "isolate_recompiles" in inspect.signature(torch.compile).parameters else {}
)

Call = Callable[..., Any]


class ForwardCall(functools.partial[Any]):
    """What stands in the place of a module's ``forward``. Called in C; a copy of its module, deep or pickled, has the
    forward of its class instead, since this one computes with the weights of the original.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        (module,) = self.of_module
        return types.MethodType(type(module).forward, memo.get(id(module), module))

    def __reduce__(self) -> Any:
        (module,) = self.of_module
        return functools.partial, (type(module).forward, module)

    of_module: tuple[nn.Module]


class ModuleEntry:
    """The ``forward`` of a module, replaced on the instance: hooks, class and state stay as they are."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._own: Any = module.__dict__.get("forward")  # one that the program put there
        self.eager: Call = module.forward
        self.name = type(module).__name__

    def bind(self, call: Call) -> None:
        """Have calls of the module run ``call``; the eager forward: as if nothing had been intercepted."""
        if call is self.eager:
            if self._own is None:
                self.module.__dict__.pop("forward", None)
            else:
                self.module.__dict__["forward"] = self._own
            return
        forward = ForwardCall(call)
        forward.of_module = (self.module,)
        functools.update_wrapper(forward, self.eager)
        self.module.__dict__["forward"] = forward


class FunctionEntry:
    """A function that calls another one, which can be exchanged."""

    module = None

    def __init__(self, function: Call) -> None:
        self.eager = function
        self.name = getattr(function, "__qualname__", type(function).__name__).replace("<locals>.", "")
        target = function

        @functools.wraps(function, updated=())
        def hot(*args: Any, **kwargs: Any) -> Any:
            return target(*args, **kwargs)

        def bind(call: Call) -> None:
            nonlocal target
            target = call

        hot.is_hot = True  # type: ignore[attr-defined]
        self.bind, self.call = bind, hot


def is_hot(target: Any) -> bool:
    """Whether calls of a function or module are intercepted already."""
    return getattr(target, "is_hot", False) is True or isinstance(
        getattr(target, "__dict__", {}).get("forward"), ForwardCall
    )


Entry = ModuleEntry | FunctionEntry


class Plan:
    """The compiled form of a loop: the whole function, or some modules that it calls (``regions``)."""

    def __init__(
        self, eager: Call, regions: Sequence[nn.Module], backend: CheckedBackend, *, dynamic: bool | None
    ) -> None:
        self.backend = backend
        self.dynamic = dynamic
        self._eager = eager
        self._regions = [ModuleEntry(module) for module in regions]
        # entries of their own: those of other models with the same code count against one limit, and are tried in each
        # call. Blocks that are alike share theirs
        alone = _ISOLATED if not regions else {}
        self._compiled = [
            guarded(torch.compile(call, backend=backend, dynamic=dynamic, **alone), call)
            for call in ([region.eager for region in self._regions] or [eager])
        ]
        self._on = False

    @property
    def what(self) -> str:
        """What is compiled, in words."""
        if not self._regions:
            return "the whole call"
        names = list(dict.fromkeys(region.name for region in self._regions))
        return f"{len(self._regions)} × {', '.join(names)}" if len(self._regions) > 1 else names[0]

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, compiled: bool) -> Any:
        """Run the loop's function, compiled or not."""
        return self.switched(on=compiled)(*args, **kwargs)

    def switched(self, *, on: bool) -> Call:
        """The function to call, with the regions compiled or as they were."""
        self.switch(on=on)
        return self._compiled[0] if on and not self._regions else self._eager

    def in_modes(self, on: Set[Mode], off: Set[Mode], module: nn.Module | None) -> Call | None:
        """The function to call where calls are compiled in some modes, and run eagerly in others; None where a call's
        modes do not decide, or regions would have to be switched for each call.
        """
        if not off:
            return self.switched(on=True)
        if self._regions or not off.isdisjoint(on):
            return None
        compiled, eager = self._compiled[0], self._eager

        def call(*args: Any, **kwargs: Any) -> Any:
            return (compiled if call_mode(module) in on else eager)(*args, **kwargs)

        return call

    def switch(self, *, on: bool) -> None:
        """Have the regions compiled, or as they were."""
        if self._on is not on:
            self._on = on
            for region, compiled in zip(self._regions, self._compiled, strict=False):
                region.bind(compiled if on else region.eager)


def inner_backend(backend: Any, mode: str | None, *, limit_s: float, same_random: bool) -> Inner:
    """The function that compiles a graph as ``torch.compile(backend=, mode=)`` would, in no more than ``limit_s``.
    ``same_random``: Inductor's code draws the random numbers that eager code would, so that the two compare.

    Raises ValueError for a backend that torch does not know.
    """
    found = backend
    if backend == "inductor":
        found = _inductor(mode, same_random=same_random)
    elif isinstance(backend, str):
        from torch._dynamo.backends.registry import lookup_backend
        from torch._dynamo.exc import InvalidBackend

        try:
            found = lookup_backend(backend)
        except (InvalidBackend, ImportError) as error:
            raise ValueError(f'no backend "{backend}" of torch.compile here') from error
    return lambda graph, inputs: within(limit_s, lambda: found(graph, inputs))


def _inductor(mode: str | None, *, same_random: bool) -> Inner:
    from torch._inductor import list_mode_options

    patches = dict(list_mode_options(mode)) if mode and mode != "default" else {}
    if same_random:
        patches["fallback_random"] = True

    def compiled(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        if why := not_to_be_trusted():
            raise RuntimeError(why)
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(graph, inputs, config_patches=patches)

    return compiled


@contextmanager
def outermost_modules(found: dict[int, tuple[nn.Module, int]]) -> Iterator[None]:
    """Note in ``found`` the modules that this thread calls in the block, not those that they call, and how often."""
    thread, depth = threading.get_ident(), 0

    def enter(module: nn.Module, _args: Any) -> None:
        nonlocal depth
        if threading.get_ident() == thread:
            if depth == 0:
                _, times = found.get(id(module), (module, 0))
                found[id(module)] = module, times + 1
            depth += 1

    def leave(_module: nn.Module, _args: Any, _out: Any) -> None:
        nonlocal depth
        if threading.get_ident() == thread:
            depth -= 1

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def alike(module: nn.Module) -> list[nn.Module]:
    """The blocks of a module: the largest family of modules in one list that have one class and the same parameters."""
    families: list[list[nn.Module]] = []
    for parent in module.modules():
        if isinstance(parent, (nn.ModuleList, nn.Sequential)):
            by_form: dict[Any, list[nn.Module]] = {}
            for child in parent.children():
                form = type(child), tuple((name, value.shape, value.dtype) for name, value in child.named_parameters())
                by_form.setdefault(form, []).append(child)
            families += [family for family in by_form.values() if len(family) >= ALIKE and _has_forward(family[0])]
    return max(families, key=lambda family: sum(1 for each in family for _ in each.modules()), default=[])


def _has_forward(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and not isinstance(module, (nn.ModuleList, nn.ModuleDict))


def planned(
    kind: CallKind,
    seen: Seen,
    entry: Entry,
    modules: dict[int, tuple[nn.Module, int]],
    options: HotOptions,
    allowed: Callable[[], bool],
) -> Plan:
    """The plan for a loop of which ``kind`` is to be compiled first. ``modules``: those that a function calls, and how
    often in a call; ``allowed``: whether a graph may be compiled now.

    Raises ValueError where there is nothing to compile, or no backend.
    """
    patterns = [each.pattern for each in seen.kinds.values() if each.pattern is not None]
    regions: list[nn.Module] = []
    if entry.module is not None:
        regions = alike(entry.module) if kind.expected is not None and kind.expected.blocks else []
    elif any(pattern.backward or pattern.optimizer for pattern in patterns) or any(
        times > 1 for _, times in modules.values()
    ):
        regions = [module for module, _ in modules.values()]
        if not regions:
            raise ValueError(TRAINS)
    same_random = any(pattern.random for pattern in patterns)
    inner = inner_backend(options.backend, options.mode, limit_s=options.limit_s, same_random=same_random)
    backend = CheckedBackend(inner, checks=CHECKED_RUNS if options.check else 0, allowed=allowed)
    dynamic = options.dynamic
    if dynamic is None and any(numbers_vary(each.sizes) for each in seen.kinds.values()):
        dynamic = True
    return Plan(entry.eager, regions, backend, dynamic=dynamic)
