"""Timers around the calls of a module: opened and closed with each call, and gone without a trace when removed."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from rooflight.capture.timed_calls import TimedCall, TimedCalls, compiled_code


class Watch:
    """Notes which timers open and close."""

    def __init__(self, name: str = "a") -> None:
        self.name, self.measuring = name, True
        self.noted: list[str] = []

    @contextmanager
    def _timer(self) -> Iterator[None]:
        self.noted.append(f"{self.name}+")
        try:
            yield
        finally:
            self.noted.append(f"{self.name}-")

    def __getitem__(self, label: str):
        assert label == "l"
        return self._timer()

    def around(self, module: nn.Module) -> TimedCall:
        return TimedCalls(self, self).around(module, "l")  # type: ignore[arg-type]


def net() -> nn.Module:
    return nn.Linear(2, 2, bias=False)


X = torch.ones(1, 2)


def test_a_call_opens_and_closes_while_something_measures():
    module, watch = net(), Watch()
    watch.around(module)
    module(X)
    watch.measuring = False
    module(X)
    assert watch.noted == ["a+", "a-"]


def test_it_closes_after_an_exception_and_beside_hooks():
    module, watch = net(), Watch()
    module.register_forward_hook(lambda *_: watch.noted.append("hook"))
    watch.around(module)
    module(X)
    with pytest.raises(RuntimeError):
        module(torch.ones(3, 3))
    assert watch.noted == ["a+", "hook", "a-", "a+", "a-"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_several_are_removed_in_any_order(order):
    module, noted = net(), []
    before = dict(vars(module))
    watches = [Watch(name) for name in "abc"]
    for watch in watches:
        watch.noted = noted
    timed = [watch.around(module) for watch in watches]
    still = {0, 1, 2}
    for number in (*order, order[0]):  # once more changes nothing
        module(X)
        opened = [name for name in "cba" if "abc".index(name) in still]
        assert noted == [f"{name}+" for name in opened] + [f"{name}-" for name in reversed(opened)]
        noted.clear()
        timed[number].remove()
        still.discard(number)
    assert vars(module) == before


def test_a_copy_is_not_timed():
    module, watch = net(), Watch()
    watch.around(module)
    for other in (copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module))):
        other(X)
    assert watch.noted == []


def test_a_module_is_freed_with_its_timer():
    module = net()
    timed, gone = Watch().around(module), weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None
    timed.remove()


def test_compiled_code_under_it_stays_and_code_over_it_too():
    torch._dynamo.reset()
    module, watch = net(), Watch()
    module.compile(backend="eager")
    code = module._compiled_call_impl
    timed = watch.around(module)
    assert compiled_code(module) is code
    module(X)
    assert watch.noted == ["a+", "a-"]
    timed.remove()
    assert module._compiled_call_impl is code
    timed = watch.around(module)
    module.compile(backend="eager")  # in its place
    code = module._compiled_call_impl
    timed.remove()
    assert module._compiled_call_impl is code
    module(X)
    assert watch.noted == ["a+", "a-"]
    torch._dynamo.reset()


def test_a_timed_part_leaves_no_trace_in_compiled_code():
    torch._dynamo.reset()
    module, watch = nn.Sequential(net(), net()), Watch()
    assert compiled_code(module) is None
    for part in module:
        watch.around(part)
        assert compiled_code(part) is None
    step = torch.compile(module, backend="eager", fullgraph=True)
    with torch.no_grad():
        step(X)
        for part in module:
            part(X)
        step(X)
    assert watch.noted == ["a+", "a-"] * 2  # of the parts alone
    torch._dynamo.reset()
