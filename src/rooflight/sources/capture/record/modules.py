"""ModuleTracker: finds which nn.Module is running, by torch's global module hooks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import get_ident
from types import FrameType, MappingProxyType
from typing import Any, ClassVar, Final

import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as torch_module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from rooflight.records.session import Session
from rooflight.records.signature import EXPERTS_PER_TOKEN, IN_CONFIGS
from rooflight.sources.capture.record.composites import OnStack, open_sources
from rooflight.sources.capture.record.dispatch import DispatchSource
from rooflight.sources.capture.record.module_work import ModuleWorks
from rooflight.sources.capture.record.outside import foreign_memory, may_be_foreign, plain_tensors
from rooflight.sources.capture.record.signatures import storage_of

# The ops that they run belong to the functions of the forward pass.
_ENGINES: Final = frozenset({torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad})
_KEPT_UNDERSCORES: Final = 4  # of a dunder


class FunctionSource(OnStack, TorchFunctionMode):
    """Keeps the source's current function up to date: the outermost open call of ``torch.*``, ``torch.nn.functional.*``
    or a tensor's method. Backward ops belong to the function that made their autograd node.

    It replaces no attribute of torch. It belongs to the thread that enters it.
    """

    push: ClassVar[Any] = staticmethod(_push_mode)
    pop: ClassVar[Any] = staticmethod(_pop_mode)
    modes: ClassVar[Any] = staticmethod(_get_current_function_mode_stack)

    def __init__(self, source: DispatchSource) -> None:
        super().__init__()
        self._source = source
        self._numbers: dict[Any, int] = {}

    def set_recomputing(self, *, recomputing: bool) -> None:
        """Begin or end the time in which a checkpoint runs a module again. The backward pass is a torch function too,
        and inside it torch would call no mode.
        """
        on_stack = self in self.modes()
        if recomputing and not on_stack:
            self.push(self)
        elif on_stack and not recomputing:
            self.take_off()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        source = self._source
        if func in _ENGINES or not source.here:
            return func(*args, **(kwargs or {}))
        outer = source.function
        try:
            number = self._numbers.get(func)
            if number is None:
                number = self._numbers[func] = source.tape.function(function_name(func))
            source.move(source.module, number)
        except Exception as error:
            source.fail(error)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            try:
                source.move(source.module, outer)
            except Exception as error:
                source.fail(error)


def function_name(func: Any) -> str:
    """The name of a torch function in reports: ``linear``, ``add`` for ``Tensor.__add__``, ``mm`` for
    ``torch.ops.aten.mm.default``, ``T`` for the property.
    """
    name = str(getattr(func, "__name__", "") or type(func).__name__)
    if name in ("__get__", "__set__", "__delete__"):
        name = str(getattr(getattr(func, "__self__", None), "__name__", name))
    if name.startswith("__") and name.endswith("__") and len(name) > _KEPT_UNDERSCORES:
        return name[2:-2]
    return name.split(".")[0] if isinstance(func, torch._ops.OpOverload) else name


Models = nn.Module | Mapping[str, nn.Module] | Sequence[nn.Module]
"""A model, several by name (policy and reference), or several in order (the chunks of a pipeline stage)."""

_CALL = nn.Module._call_impl.__code__


class ModuleTracker:
    """Keeps the source's current module up to date while installed.

    Without a model, the outermost module called becomes a root named after its class, and the modules below it get
    their qualified names below that. Those of ``models`` (see ``models_of``) are named by ``named_modules()`` of each,
    with its prefix.
    """

    def __init__(
        self,
        source: DispatchSource,
        models: Mapping[str, nn.Module] = MappingProxyType({}),
        functions: FunctionSource | None = None,
    ) -> None:
        self._source = source
        self._functions = functions
        self._works = ModuleWorks(source)
        self._formulas = self._works.formulas
        self._numbers: dict[int, int] = {}  # id of a module -> its number on the tape
        self._roots: list[nn.Module] = []  # named modules stay alive, or their ids could be reused
        self._stack: list[tuple[nn.Module, int]] = []
        source.tape.births.open_modules = self._stack
        self._calls: set[tuple[int, int]] = set()  # pairs of modules, by number: the first has called the second
        self._paths: dict[int, str] = {}  # by number, empty for a model without a name
        self._parents: dict[int, int] = {}  # the module that has each one as a child, by number
        self.name(models)

    def name(self, models: Mapping[str, nn.Module]) -> None:
        """Give the modules of these models their qualified names."""
        for prefix, model in models.items():
            self._name_tree(uncompiled(model), prefix)

    def roots(self) -> Sequence[nn.Module]:
        """The models and the outermost modules met so far."""
        return self._roots

    def install(self) -> None:
        """Register the hooks."""
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, with_kwargs=True, always_call=True)

    def remove(self) -> None:
        """Take the hooks out again. They are searched for, since an interrupt may have lost their handles."""
        for hooks, mine in ((torch_module._global_forward_pre_hooks, self._enter),
                            (torch_module._global_forward_hooks, self._leave)):  # fmt: skip
            for number in [number for number, hook in hooks.items() if hook == mine]:
                torch_module._global_forward_hooks_always_called.pop(number, None)
                torch_module._global_forward_hooks_with_kwargs.pop(number, None)
                hooks.pop(number, None)

    def _name_tree(self, root: nn.Module, prefix: str) -> None:
        """Name all modules that ``root.named_modules(prefix=prefix)`` yields, in that order, in a third of the time."""
        numbers, seen = self._numbers, set[int]()
        number_of, parameter_modules = self._source.tape.module, self._source.parameter_modules
        self._roots.append(root)
        to_name = [(prefix, -1, root)]
        while to_name:
            path, parent, module = to_name.pop()
            key = id(module)
            if key in seen:
                continue
            seen.add(key)
            number = numbers.get(key)
            if number is None:
                kind = type(module).__name__
                number = numbers[key] = number_of(path or kind, kind)
                self._paths[number], self._parents[number] = path, parent
                self._works.learn(module, number)
                if module._buffers:
                    self._source.constants.hold(module._buffers.values())
                for parameter in module._parameters.values():
                    if parameter is not None:
                        parameter_modules[id(parameter)] = number
            if module._modules:
                inside = f"{path}." if path else ""
                for name, child in reversed(module._modules.items()):
                    if child is not None:
                        to_name.append((inside + name, number, child))

    def _enter(self, module: nn.Module, args: Any) -> None:
        if is_dynamo_compiling():  # in another thread, whose calls are not recorded
            return
        source, stack = self._source, self._stack
        try:
            if not source.here or (get_ident() != source.thread and source not in open_sources()):
                return
            number = self._numbers.get(id(module))
            if number is None:
                self._forget_interrupted()
                number = self._name_unknown(module)
            elif stack and self._parents[number] != stack[-1][1] and (stack[-1][1], number) not in self._calls:
                self._check_call(stack[-1][1], number)
            if self._functions is not None and not stack and _current_graph_task_id() != -1:
                self._functions.set_recomputing(recomputing=True)
            if not stack:
                self._look_at(args)
                source.tape.call_begins()
            stack.append((module, number))
            source.move(number, source.function)
            if number in self._formulas:
                self._works.enter(module, number)
        except Exception as error:
            source.fail(error)

    def _leave(self, module: nn.Module, args: Any, *more: Any) -> None:
        if is_dynamo_compiling():
            return
        source, stack = self._source, self._stack
        kwargs, output = more if len(more) > 1 else ({}, None)  # torch leaves kwargs out where the call raised
        try:
            if not source.here or (get_ident() != source.thread and source not in open_sources()):
                return
            if may_be_foreign(output):
                self._look_at(output, returned=True)
            if stack and stack[-1][0] is module:
                stack.pop()
            else:
                self._end_call(module)
            source.move(stack[-1][1] if stack else 0, source.function)
            if not stack:
                self._note_results(output)
                if sys.exc_info()[0] is None:  # otherwise its traceback holds whatever there is
                    source.tape.births.settle((args, kwargs), output)
                source.tape.call_ends(output)
            if self._functions is not None and not stack and _current_graph_task_id() != -1:
                self._functions.set_recomputing(recomputing=False)
            if self._numbers.get(id(module)) in self._formulas:
                self._works.leave(module, args, kwargs, output)
        except Exception as error:
            source.fail(error)

    def _look_at(self, values: Any, *, returned: bool = False) -> None:
        source = self._source
        for tensor in plain_tensors(values):
            if (memory := foreign_memory(tensor)) is not None:
                number = source.tape.foreign_storage(memory, tensor, source.context_now())
                if returned:
                    source.tape.births.consumed.add(number)

    def _note_results(self, output: Any) -> None:
        """Take note of the storages that an outermost module returns: its caller has them, even if no op reads them."""
        ids, results = self._source.tape.storage_ids, self._source.tape.births.consumed
        for tensor in plain_tensors(output):
            memory = storage_of(tensor)
            if memory is not None and (number := ids.get(memory._cdata)) is not None:
                results.add(number)

    def _end_call(self, module: nn.Module) -> None:
        for depth in range(len(self._stack) - 1, -1, -1):
            if self._stack[depth][0] is module:
                del self._stack[depth:]
                return

    def _check_call(self, caller: int, number: int) -> None:
        """A module's first call by another: unless it is inside the caller, that may have been interrupted."""
        path = self._paths[caller]
        if number == caller or not self._paths[number].startswith(f"{path}." if path else ""):
            self._forget_interrupted()
        if self._stack:
            self._calls.add((self._stack[-1][1], number))

    def _forget_interrupted(self) -> None:
        """Drop calls that ended without a hook. Torch calls the hooks of calls that return or raise an Exception, but
        not of those that a KeyboardInterrupt stops. A program that continues after one calls a module that none of
        these would call.
        """
        if not self._stack or get_ident() != self._source.thread:
            return
        running = _running_modules()
        if next(running, None) is self._stack[-1][0]:
            return
        alive = {id(module) for module in running}
        while self._stack and id(self._stack[-1][0]) not in alive:
            self._stack.pop()

    def _name_unknown(self, module: nn.Module) -> int:
        inner = uncompiled(module)
        if id(inner) not in self._numbers:
            parent = self._source.tape.module_path(self._stack[-1][1]) if self._stack else ""
            name = type(inner).__name__
            self._name_tree(inner, f"{parent}.{name}" if parent else name)
        if inner is not module:
            self._roots.append(module)
            self._numbers[id(module)] = self._numbers[id(inner)]
        return self._numbers[id(module)]


def models_of(model: Models | None) -> dict[str, nn.Module]:
    """Models by the prefix of their modules' names: empty for a single model, otherwise its name or place.

    Raises TypeError for anything but a module.
    """
    if model is None:
        return {}
    if isinstance(model, nn.Module):
        return {"": model}
    if isinstance(model, Mapping):
        found = {str(name): module for name, module in model.items()}
    elif isinstance(model, str) or not isinstance(model, Iterable):
        found = {"": model}
    else:
        found = {str(place): module for place, module in enumerate(model)}
    for module in found.values():
        if not isinstance(module, nn.Module):
            raise TypeError(f"{type(module).__name__} is not a torch.nn.Module: give the model, or a dict of models")
    return {"": next(iter(found.values()))} if len(found) == 1 and not isinstance(model, Mapping) else found


def module_name(prefix: str, name: str) -> str:
    """The qualified name of the child ``name`` of the module ``prefix``."""
    return f"{prefix}.{name}" if prefix else name


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` wrapped: the wrapper has no name of its own."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # a second to import, and nothing is compiled before it is
    inner: nn.Module = module._orig_mod if dynamo and isinstance(module, dynamo.OptimizedModule) else module
    return inner


def with_experts(session: Session, models: Iterable[nn.Module]) -> Session:
    """The session, whose grouped products know to how many experts a token goes where a model's config tells it."""
    if not any("_grouped_mm" in op.name for op in session.signatures):
        return session
    configs = [getattr(model, "config", None) for root in models for model in root.modules()]
    known = (getattr(config, name, None) for config in configs if config is not None for name in IN_CONFIGS)
    per_token = next((each for each in known if isinstance(each, int) and each > 0), 0)
    if not per_token:
        return session
    more = ((EXPERTS_PER_TOKEN, per_token),)
    signatures = (
        replace(op, attributes=(*op.attributes, *more)) if "_grouped_mm" in op.name else op for op in session.signatures
    )
    return replace(session, signatures=tuple(signatures))


def _running_modules() -> Iterator[nn.Module]:
    frame: FrameType | None = sys._getframe(1)
    calls = 0
    while frame is not None:
        if frame.f_code is _CALL:
            calls += 1
            if calls > 1:
                yield frame.f_locals["self"]
        frame = frame.f_back
