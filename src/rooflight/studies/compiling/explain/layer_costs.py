"""What each layer of the dispatcher costs: an op timed with layers excluded one after the other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final

from rooflight.studies.compiling.explain.result import Layer

SMALL: Final = 4
"""Largest dimension of the inputs that are timed: the dispatcher's work does not depend on sizes."""
ROUNDS: Final = 15
BATCH_S: Final = 2e-4
"""Time of one batch of calls; a round has a batch at each level, in turns."""
MOST_CALLS: Final = 100


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """``call_s``: median time of a call with all layers, None if it could not be timed. ``layers_s``: for each layer
    that was excluded, the median difference and the distance of the quartiles.
    """

    call_s: float | None = None
    layers_s: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What kind of tensor an argument was, with small dimensions."""

    shape: tuple[int, ...]
    dtype: Any
    device: Any
    requires_grad: bool

    def made(self) -> Any:
        """A tensor of this kind, of zeros."""
        import torch

        made = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        return made.requires_grad_() if self.requires_grad else made


_Level = Callable[[], AbstractContextManager[Any]]
_OTHER: Final = object()
_EXCLUDED: Final = ("autocast", "autograd", "in-place and views")


def described(value: Any) -> Any:
    """Arguments with a ``Kind`` in the place of each tensor, so that none of the program's is kept alive."""
    import torch
    from torch.utils._pytree import tree_map

    def kind(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
            return _OTHER
        shape = tuple(min(int(size), SMALL) for size in leaf.shape)
        return Kind(shape=shape, dtype=leaf.dtype, device=leaf.device, requires_grad=leaf.requires_grad)

    return tree_map(kind, value)


def _made(value: Any, *, cut: bool) -> Any:
    if value is _OTHER:
        raise ValueError("a tensor of a class of its own")
    if isinstance(value, Kind):
        return value.made()
    if isinstance(value, list | tuple):
        sizes = cut and all(type(each) is int for each in value)
        made = [min(each, SMALL) if sizes else _made(each, cut=cut) for each in value]
        return made if isinstance(value, list) else tuple(made)
    if isinstance(value, dict):
        return {key: _made(each, cut=cut) for key, each in value.items()}
    return value


def costs_of(
    function: Any,
    example: tuple[Sequence[Any], Mapping[str, Any]],
    layers: Sequence[Layer],
    *,
    clock: Callable[[], float] = perf_counter,
) -> LayerCosts:
    """Time a call of an op with small inputs of the same kinds, then with autocast excluded, with autograd, and with
    in-place and views: the differences are what these layers cost. The last layer has no cost of its own: what remains
    is the kernel and the call from Python.

    An op that does not run on small inputs is not timed.
    """
    levels: list[_Level] = [nullcontext]
    levels += [partial(_without, layer.kind) for layer in layers[:-1] if layer.kind in _EXCLUDED]
    if len(levels) < len(layers):  # a layer that cannot be excluded: only the call as a whole is timed
        levels = levels[:1]
    with _one_thread():  # of small inputs, several would wait for each other
        call = _runs(function, example, levels)
        if call is None:
            return LayerCosts()
        calls = _calls_in(call, clock)
        rounds = [[_batch_s(call, calls, level, clock) for level in levels] for _ in range(ROUNDS)]
    differences = [[row[n] - row[n + 1] for row in rounds] for n in range(len(levels) - 1)]
    return LayerCosts(
        call_s=statistics.median(row[0] for row in rounds),
        layers_s=tuple((statistics.median(each), _spread(each)) for each in differences),
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _spread(values: Sequence[float]) -> float:
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first


def _runs(
    function: Any,
    example: tuple[Sequence[Any], Mapping[str, Any]],
    levels: Sequence[_Level],
) -> Callable[[], Any] | None:
    for cut in (True, False):
        try:
            args, kwargs = _made(tuple(example[0]), cut=cut), _made(dict(example[1]), cut=cut)
            for level in levels:
                with level():
                    function(*args, **kwargs)
        except Exception:  # whatever an op says to sizes that are not its own
            continue
        return partial(function, *args, **kwargs)
    return None


def _calls_in(call: Callable[[], Any], clock: Callable[[], float]) -> int:
    each = _batch_s(call, 3, nullcontext, clock)
    return MOST_CALLS if each <= 0 else max(1, min(MOST_CALLS, int(BATCH_S / each)))


def _batch_s(call: Callable[[], Any], calls: int, level: _Level, clock: Callable[[], float]) -> float:
    with level():
        begin = clock()
        for _ in range(calls):
            call()
        return (clock() - begin) / calls


def _without(layer: str) -> AbstractContextManager[Any]:
    from torch import _C

    if layer == "autograd":
        return _C._AutoDispatchBelowAutograd()
    if layer == "in-place and views":
        return _C._AutoDispatchBelowADInplaceOrView()
    keys = _C.DispatchKeySet(_C.DispatchKey.AutocastCPU).add(_C.DispatchKey.AutocastCUDA)
    return _C._ExcludeDispatchKeyGuard(keys)
