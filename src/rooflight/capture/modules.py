"""ModuleTracker: which nn.Module is running, by torch's global module and optimizer hooks."""

from __future__ import annotations

from threading import get_ident
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from rooflight.capture.composites import _sources
from rooflight.capture.dispatch import DispatchSource


class ModuleTracker:
    """Keeps the source's current module and direction up to date while installed.

    Without a model, the outermost module called becomes a root named after its class, and the modules below it get
    their qualified names below that. With a model, names are those of ``model.named_modules()``.
    """

    def __init__(self, source: DispatchSource, model: nn.Module | None = None) -> None:
        self._source = source
        self._numbers: dict[int, int] = {}  # id of a module -> its number on the tape
        self._kept: list[nn.Module] = []  # named modules stay alive, or their ids could be reused
        self._stack: list[tuple[nn.Module, int]] = []
        self._handles: list[Any] = []
        if model is not None:
            self._name_tree(model, "")

    def install(self) -> None:
        """Register the hooks."""
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._enter_step),
            register_optimizer_step_post_hook(self._leave_step),
        ]

    def remove(self) -> None:
        """Take the hooks out again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _name_tree(self, root: nn.Module, prefix: str) -> None:
        root_name = type(root).__name__
        self._kept.append(root)
        for path, module in root.named_modules(prefix=prefix):
            if id(module) in self._numbers:
                continue
            number = self._source.module_number(path or root_name, type(module).__name__)
            self._numbers[id(module)] = number
            for parameter in module.parameters(recurse=False):
                self._source.parameter_modules[id(parameter)] = number

    def _here(self) -> bool:
        """Whether the caller's thread, not the source's own, is one where torch runs a backward pass of it."""
        return self._source in _sources()

    def _enter(self, module: nn.Module, args: Any) -> None:
        source = self._source
        if get_ident() != source.thread and not self._here():
            return
        number = self._numbers.get(id(module))
        if number is None:
            number = self._name_unknown(module)
        self._stack.append((module, number))
        source.enter_module(number)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        source, stack = self._source, self._stack
        if get_ident() != source.thread and not self._here():
            return
        while stack and stack.pop()[0] is not module:
            pass  # a forward that raised may have left entries above its own
        source.enter_module(stack[-1][1] if stack else 0)

    def _name_unknown(self, module: nn.Module) -> int:
        """Name a module met for the first time, and those below it, after its class and the module that called it."""
        parent = self._source.tape.module_path(self._stack[-1][1]) if self._stack else ""
        name = type(module).__name__
        self._name_tree(module, f"{parent}.{name}" if parent else name)
        return self._numbers[id(module)]

    def _enter_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if get_ident() == self._source.thread or self._here():
            self._source.optimizer_steps += 1
            self._source.update_context()

    def _leave_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if get_ident() == self._source.thread or self._here():
            self._source.optimizer_steps = max(0, self._source.optimizer_steps - 1)
            self._source.update_context()
