"""Timers around the calls of a module: opened and closed with each call, and gone without a trace when removed."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import weakref

import pytest
import torch
from torch import nn

from rooflight.sources.capture.time.timed_calls import Arounds, TimedCall, TimedCalls, compiled_code


class Watch:
    """Notes which timers open and close."""

    def __init__(self, name: str = "a") -> None:
        self.name, self.measuring, self.caller = name, True, None
        self.noted: list[str] = []

    def __enter__(self) -> None:
        self.noted.append(f"{self.name}+")

    def __exit__(self, *_: object) -> None:
        self.noted.append(f"{self.name}-")

    def __getitem__(self, label: str) -> Watch:
        assert label == "l"
        return self

    def around(self, module: nn.Module) -> TimedCall:
        return TimedCalls(self, Arounds(self)).around(module, "l")  # type: ignore[arg-type]


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


def test_timers_are_looked_up_again_when_they_are_others():
    module, found = net(), []
    timers = {"l": Watch("old")}
    arounds, watch = Arounds(timers), Watch()
    calls = TimedCalls(watch, arounds)
    calls.around(module, "l")
    for name in ("old", "new"):
        timers["l"] = Watch(name)
        calls.renew()
        arounds.clear()
        for _ in range(2):
            module(X)
        found.append(timers["l"].noted)
    assert found == [["old+", "old-"] * 2, ["new+", "new-"] * 2]


def test_a_caller_is_named_during_its_calls_also_when_they_nest_or_raise():
    outer, inner, watch, seen = net(), net(), Watch(), []
    calls = TimedCalls(watch, Arounds({"outer": watch, "inner": watch, "part": watch}))
    calls.around(outer, "outer", caller=True)
    calls.around(inner, "inner", caller=True)
    part = net()
    calls.around(part, "part")

    def calls_others(*_: object) -> None:
        seen.append(watch.caller)
        inner(X)
        part(X)

    outer.register_forward_pre_hook(calls_others)
    inner.register_forward_hook(lambda *_: seen.append(watch.caller))
    part.register_forward_hook(lambda *_: seen.append(watch.caller))
    outer(X)
    assert (seen, watch.caller) == (["outer", "inner", "outer"], None)
    with pytest.raises(RuntimeError):
        outer(torch.ones(3, 3))
    assert watch.caller is None
    watch.measuring = False
    seen.clear()
    outer(X)
    assert seen == [None, None, None]


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
