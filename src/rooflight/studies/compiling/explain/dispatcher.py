"""The dispatcher's way of each op: how its key set comes about, and the kernels that run, layer by layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Thread
from typing import Any, Final

import msgspec

from rooflight.studies.compiling.explain.layer_costs import LayerCosts, costs_of, described
from rooflight.studies.compiling.explain.result import Dispatched, Layer, LayerKind

_ROW: Final = re.compile(r"^(\w+): (fallthrough )?registered at (.+?) \[(.+)\]$", re.MULTILINE)
_NAMES: Final = re.compile(r"\w+")
_WATCHING: Final = frozenset(("PythonDispatcher", "PreDispatch", "Python", "PythonTLSSnapshot"))
"""Keys that the watching itself sets."""
MEASURED_OPS: Final = 64
"""So many kinds of calls have their layers timed, the most frequent first."""


@dataclass(frozen=True, slots=True)
class _State:
    included: int
    excluded: int


@dataclass(slots=True)
class _Call:
    function: Any
    inputs: int
    state: _State
    within: str
    backward: bool
    grad: bool
    inference: bool
    example: tuple[Sequence[Any], Mapping[str, Any]]
    count: int = 0
    calls_on: dict[str, None] = field(default_factory=dict)


@lru_cache(maxsize=1)
def _defaults() -> _State:
    found: list[_State] = []
    thread = Thread(target=lambda: found.append(_state()))
    thread.start()
    thread.join()
    return found[0]


def _state() -> _State:
    from torch import _C

    return _State(_C._dispatch_tls_local_include_set().raw_repr(), _C._dispatch_tls_local_exclude_set().raw_repr())


class Dispatches:
    """What the dispatcher did with each op of the calls in ``watching``."""

    def __init__(self) -> None:
        self._calls: dict[Any, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note each op that the block calls, before autograd and below it. It runs as it would otherwise."""
        from torch import _C

        with _C._EnablePythonDispatcher(), _watcher(self._top, self._below):
            yield

    def _top(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Call:
        return self._note(function, args, kwargs, _state(), "")

    def _below(self, parent: _Call, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if function is parent.function:
            return
        parent.calls_on[_name(function)] = None
        state = parent.state
        for layer in layers(parent.function, _united(parent.inputs, state)):
            if layer.kind == "autocast":  # it is excluded inside
                state = _State(state.included, state.excluded | _bits(layer.key))
        self._note(function, args, kwargs, state, _name(parent.function))

    def _note(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], state: _State, within: str) -> _Call:
        import torch
        from torch import _C
        from torch.utils._pytree import tree_leaves

        inputs = 0
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                inputs |= _C._dispatch_keys(leaf).raw_repr()
        modes = _C._current_graph_task_id() != -1, bool(_C.is_grad_enabled()), bool(_C.is_inference_mode_enabled())
        key = (function, inputs, state, within, *modes)
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Call(*key, described((args, kwargs)))
        call.count += 1
        return call

    def explained(self, *, measure: bool = True) -> tuple[Dispatched, ...]:
        """The calls with their layers, in the order of their first call; ``measure``: with what each layer costs."""
        most = sorted(self._calls.values(), key=lambda call: -call.count)[:MEASURED_OPS] if measure else []
        timed = {id(call) for call in most}
        return tuple(_explained(call, timed=id(call) in timed) for call in self._calls.values())


def _explained(call: _Call, *, timed: bool) -> Dispatched:
    usual, table = _defaults(), _table(_name(call.function))
    united = _united(call.inputs, call.state)
    found = list(layers(call.function, united))
    if found and found[-1].key == "BackendSelect":
        found += _selected(call)
    cost = LayerCosts()
    if timed and not call.backward and _name(call.function).startswith("aten::"):  # others may have effects
        with _as_called(call, found):
            cost = costs_of(call.function, call.example, found)
    present, gone = call.inputs | call.state.included, _keys(call.inputs | call.state.included)
    gone = tuple(key for key in gone if key not in _keys(united))
    never = tuple(key for key in gone if key not in _keys(_united(present, _State(0, usual.excluded))))
    costs: list[tuple[float | None, float | None]] = [*cost.layers_s, *[(None, None)] * len(found)]
    return Dispatched(
        op=_name(call.function),
        calls=call.count,
        inputs=_keys(call.inputs),
        included=_keys(call.state.included & ~usual.included),
        excluded=tuple(key for key in gone if key not in never),
        always=_keys(usual.included & call.state.included),
        never=never,
        passed_over=tuple(key for key in _keys(united) if key in table and table[key][2]),
        layers=tuple(
            msgspec.structs.replace(layer, cost_s=spent_s, spread_s=spread_s)
            for layer, (spent_s, spread_s) in zip(found, costs, strict=False)
        ),
        calls_on=tuple(call.calls_on),
        within=call.within,
        backward=call.backward,
        grad=call.grad,
        call_s=cost.call_s,
    )


@contextmanager
def _as_called(call: _Call, found: Sequence[Layer]) -> Iterator[None]:
    import torch

    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))  # random numbers go on as if nothing had been drawn
        stack.enter_context(torch.inference_mode(call.inference))
        stack.enter_context(torch.set_grad_enabled(call.grad))
        for layer in found:
            if layer.kind == "autocast":
                device = "cuda" if layer.key == "AutocastCUDA" else "cpu"
                stack.enter_context(torch.autocast(device, cache_enabled=False))
        yield


def _name(function: Any) -> str:
    return str(function.name()) if hasattr(function, "name") and callable(function.name) else str(function)


def _keys(bits: int) -> tuple[str, ...]:
    from torch import _C

    text = _C._dispatch_keyset_to_string(_C.DispatchKeySet.from_raw_repr(bits))
    names = _NAMES.findall(str(text).partition("(")[2])
    return tuple(name for name in reversed(names) if name not in _WATCHING)


def _bits(key: str) -> int:
    from torch import _C

    return int(_C.DispatchKeySet(_C._dispatch_key_parse(key)).raw_repr())


def _united(inputs: int, state: _State) -> int:
    """(inputs | included) - excluded. Excluding a key excludes it for all backends, and no backend."""
    from torch import _C

    backends = (1 << _C._dispatch_num_backends()) - 1
    return (inputs | state.included) & (backends | ~state.excluded)


@lru_cache(maxsize=4096)
def _table(name: str) -> dict[str, tuple[str, str, bool]]:
    from torch import _C

    try:
        text = _C._dispatch_dump_table(name)
    except RuntimeError:  # a higher-order op, which Python dispatches
        return {}
    return {row[1]: (row[3], row[4], bool(row[2])) for row in _ROW.finditer(text)}


def _selected(call: _Call) -> Iterator[Layer]:
    import torch

    device = torch.device(call.example[1].get("device") or torch.get_default_device())
    key = str(torch._C._dispatch_key_for_device(device.type))
    registered = _table(_name(call.function)).get(key)
    if registered is not None:
        yield Layer(key=key, kind="backend", registered=_shortened(registered[0]))


def layers(function: Any, united: int) -> Iterator[Layer]:
    """The kernels that run for a call of an op (an OpOverload) with a key set, the first first.

    Each runs, excludes its own keys, and calls on to the next. A composite kernel ends them: it calls other ops.
    """
    table = _table(_name(function))
    for key in _keys(united):
        registered, kind, through = table.get(key, ("", "", True))
        if through:
            continue
        layer = Layer(key=key, kind=_kind(key, kind), registered=_shortened(registered), masks=_masks(key, kind, table))
        yield layer
        if layer.kind in ("composite", "backend"):
            return


def _kind(key: str, registered_as: str) -> LayerKind:
    if "math kernel" in registered_as:
        return "composite"
    prefixes: dict[str, LayerKind] = {
        "Autocast": "autocast",
        "Autograd": "autograd",
        "ADInplaceOrView": "in-place and views",
        "Functionalize": "functionalization",
        "Python": "python",
    }
    above = key.startswith(("FuncTorch", "Batched", "Vmap", "BackendSelect", "Conjugate", "Negative", "ZeroTensor",
                            "Named", "Tracer", "Testing", "PreDispatch"))  # fmt: skip
    return next((kind for prefix, kind in prefixes.items() if key.startswith(prefix)), "other" if above else "backend")


def _masks(key: str, registered_as: str, table: Mapping[str, tuple[str, str, bool]]) -> tuple[str, ...]:
    """What a layer excludes before it calls on, as the kernels of ``VariableType`` are generated."""
    if "math kernel" in registered_as or _kind(key, registered_as) in ("backend", "other"):
        return ()
    if key.startswith("Autograd"):
        views = table.get("ADInplaceOrView", ("", "", True))
        return ("Autograd", "ADInplaceOrView") if views[2] else ("Autograd",)
    if key == "ADInplaceOrView":
        return ("Autograd", "ADInplaceOrView")
    return (key,)


def _shortened(registered: str) -> str:
    return re.sub(r"^.*?/(?=(aten|torch|build)/)", "", registered).removeprefix("build/")


def _watcher(
    top: Callable[[Any, Sequence[Any], Mapping[str, Any]], _Call],
    below: Callable[[_Call, Any, Sequence[Any], Mapping[str, Any]], None],
) -> Any:
    """Of modes before autograd torch takes only its own classes, so it derives from one of them."""
    from torch import _C
    from torch._subclasses.schema_check_mode import SchemaCheckMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Below(TorchDispatchMode):
        def __init__(self, call: _Call) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.call = call

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            below(self.call, func, args, kwargs or {})
            return func(*args, **(kwargs or {}))

    class Top(SchemaCheckMode):
        def __init__(self) -> None:
            TorchDispatchMode.__init__(self, _dispatch_key=_C.DispatchKey.PreDispatch)

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            call = top(func, args, kwargs or {})
            # what Python registered for tracing does not run in eager
            with _C._DisablePythonDispatcher(), Below(call):
                return func(*args, **(kwargs or {}))

    return Top()
