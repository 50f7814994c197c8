"""The hooks of a script whose step is known and recorded: the same as the finder's, for the model and the optimizer of
every step, at a third of the time. Anything else goes on to the finder.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch._C._autograd import _get_sequence_nr
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from rooflight.sources.capture.run.callers import elements_of


def hasten(finder: Any, model: nn.Module, optimizer: Any, hook: str) -> None:
    """Put them in the place of the hooks of ``finder``, a StepFinder."""
    hooks, thread = modules._global_forward_pre_hooks, get_ident()
    key, number, running = id(optimizer), finder.number_of(optimizer), finder.running
    is_grad_enabled = torch.is_grad_enabled
    slowly_called, slowly_begins, slowly_ended = finder.called, finder.optimizer_begins, finder.optimizer_ended

    def called(module: nn.Module, args: Any) -> None:
        if is_dynamo_compiling():
            return
        if (
            module is model
            and not (finder.begun or finder.waits.evaluates_since or finder.waits.other_data_since)
            and module.training
            and is_grad_enabled()
            and _current_graph_task_id() == -1
            and get_ident() == thread
        ):
            hooks.pop(hook, None)  # type: ignore[call-overload]
            finder.begun, finder.nodes, finder.backwards = perf_counter_ns(), _get_sequence_nr(), 0
            finder.elements = elements_of(args)
            finder.in_known_step = True
        else:
            slowly_called(module, args)

    def begins(each: Any, args: Any, kwargs: Any) -> None:
        if each is optimizer and finder.in_known_step and not running and get_ident() == thread:
            running.append(key)
        else:
            slowly_begins(each, args, kwargs)

    def ended(each: Any, args: Any, kwargs: Any) -> None:
        if each is optimizer and finder.in_known_step and len(running) == 1 and get_ident() == thread:
            now = perf_counter_ns()
            running.pop()
            waits = finder.waits
            made, known = _get_sequence_nr() - finder.nodes, (waits.loader, waits.evaluation, waits.checkpoint)
            finder.by_optimizer.add(finder.begun, now, number, finder.backwards, made, known, "", finder.elements)
            finder.begun, waits.last_event, finder.in_known_step = 0, now, False
            hooks[hook] = called  # type: ignore[index]
        else:
            slowly_ended(each, args, kwargs)

    finder.hook = called
    _replace(optimizers._global_optimizer_pre_hooks, slowly_begins, begins)
    _replace(optimizers._global_optimizer_post_hooks, slowly_ended, ended)


def _replace(hooks: Any, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    for number, hook in hooks.items():
        if hook is old:
            hooks[number] = new
