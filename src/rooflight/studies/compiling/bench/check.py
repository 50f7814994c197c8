"""Whether a compiled program is right: beside the eager one, and both beside the same program in float64.

Rounding makes a compiled program differ from the eager one, and neither is the truth. Both are therefore compared with
a float64 run, as torch's own benchmarks do: each op once more, on shadows of its tensors in double precision. The run
keeps the program's control flow: what it reads as a number, and every integer and boolean, is that of the program's
own precision. A sum is only known to the rounding of its terms: where these cancel, as in the gradient of a bias before
a batch norm, which is 0, that is more than the sum itself. And what an op rounds may grow in the ops after it: a second
float64 run, whose ops are all off by as little as counts as none, shows by how much.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeGuard

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import keystr, tree_leaves, tree_leaves_with_path, tree_map

from rooflight.sources.capture.op_call import OpCall, written_by
from rooflight.sources.workloads.errors import in_one_line
from rooflight.sources.workloads.outputs import Difference, compare, copied, tolerance_of
from rooflight.studies.compiling.bench.result import Check, Rounding

STEPS: Final = 3
_NO_FURTHER: Final = 2.0
"""Errors of rounding of the same program differ by such a factor: torch's own benchmarks allow it."""
_SHARE: Final = 0.1
"""Of the tolerance of its dtype: an error that is smaller counts as none. Also torch's."""
_SUMS: Final = {
    "aten::sum": 0,
    "aten::convolution_backward": 2,
    "aten::native_batch_norm_backward": 2,
    "aten::native_group_norm_backward": 2,
    "aten::native_layer_norm_backward": 2,
}
"""Ops of which one result sums the elements of their first argument, and its place among the results."""
_LEAST_SCALE: Final = 0.1
"""Of the root mean square of all values: what a tensor's error is held against at least, as some are 0 but for
rounding (the gradient of a key's bias)."""

Run = Callable[[], Any]
Opened = tuple[Run, nn.Module | None]
Exact = tuple[Any, Any]
"""A value in float64, and, nested alike, the mean size of what each of its tensors sums: 0 for one that is no sum."""
Kinds = Sequence[tuple[str, Iterable[tuple[Exact, Any, Any]]]]
"""By kind of value: what is exact, eager and compiled, nested alike."""


@dataclass(slots=True)
class _Seen:
    results: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)


def check(eager: Opened, compiled: Opened, double: Callable[[], Opened]) -> Check:
    """The programs side by side for ``STEPS`` steps, each from the same weights, inputs and random numbers.

    ``double`` opens the eager program once more, which runs in float64 beside itself. What keeps it from that is an
    answer, not an error.
    """
    ours, theirs = _followed(*eager), _followed(*compiled)
    result = Difference()
    for one, other in zip(ours.results, theirs.results, strict=True):
        result = result.worse(_compared(one, other))
    state = None
    if eager[1] is not None:
        state = compare(ours.state, theirs.state)
        for before, after in zip(ours.gradients, theirs.gradients, strict=True):
            state = state.worse(compare(before, after))
    return Check(
        result=result,
        state=state,
        steps=STEPS,
        rounding=rounding(partial(_followed_in_float64, ours, theirs, double)),
    )


def _followed(run: Run, model: nn.Module | None) -> _Seen:
    seen = _Seen()
    for number in range(STEPS):
        torch.manual_seed(number)
        seen.results.append(copied(_plain(run())))
        if model is not None:
            seen.gradients.append(copied(_gradients(model)))
    if model is not None:
        seen.state = copied(_state(model))
    return seen


def _followed_in_float64(eager: _Seen, compiled: _Seen, double: Callable[[], Opened], mode: InFloat64) -> Kinds:
    (run, model), truth = double(), _Seen()
    for number in range(STEPS):
        torch.manual_seed(number)
        with mode.running():
            result = _plain(run())
        truth.results.append(mode.exact(result))
        if model is not None:
            truth.gradients.append(mode.exact(_gradients(model)))
    return (
        ("result", zip(truth.results, eager.results, compiled.results, strict=True)),
        ("gradient", zip(truth.gradients, eager.gradients, compiled.gradients, strict=True)),
        ("state", [(mode.exact({} if model is None else _state(model)), eager.state, compiled.state)]),
    )


def rounding(follow: Callable[[InFloat64], Kinds]) -> Rounding:
    """The errors of a program, eager and compiled, beside a float64 run, which ``follow`` makes, as often as asked."""
    mode = InFloat64()
    try:
        kinds = [(kind, list(steps)) for kind, steps in follow(mode)]
        found = _errors(kinds, mode)
        if found.further:
            stirred = [[exact for exact, *_ in steps] for _, steps in follow(InFloat64(stirs=True))]
            found = _errors(kinds, mode, stirred)
        return found
    except Exception as error:  # that the program has no float64 form does not make it wrong
        return Rounding(failed=in_one_line(error))


def _errors(kinds: Kinds, mode: InFloat64, stirred: Sequence[Sequence[Exact]] = ()) -> Rounding:
    most, least, further = 0.0, 0.0, ""
    some = False
    for number, (kind, steps) in enumerate(kinds):
        for step, (wide, one, other) in enumerate(steps):
            stirs = (stirred[number][step] if stirred else wide)[0]
            for name, own, theirs, noise, tolerance in _leaf_errors(wide, stirs, one, other):
                some = True
                least, most = max(least, own), max(most, theirs)
                if not further and not theirs <= _NO_FURTHER * max(own, noise) + _SHARE * tolerance:
                    further = f"{kind} {name}".strip()
    missing = tuple(sorted(mode.missing))
    if not some:
        return Rounding(missing=missing, failed="it gives no floating-point numbers")
    return Rounding(eager=least, compiled=most, further=further, missing=missing)


def _leaf_errors(exact: Exact, stirred: Any, one: Any, other: Any) -> Iterator[tuple[str, float, float, float, float]]:
    """Of each tensor its name, both errors, the rounding of what it sums or what ``stirred`` it more, as shares of its
    scale, and its tolerance.
    """
    sides = map(tree_leaves, (exact[1], stirred, one, other))
    leaves = [
        (keystr(path), truth, terms, moved, own, theirs)
        for (path, truth), terms, moved, own, theirs in zip(tree_leaves_with_path(exact[0]), *sides, strict=True)
        if isinstance(own, torch.Tensor) and own.is_floating_point() and own.numel()
    ]
    sizes = [float(truth.square().sum()) for _, truth, *_ in leaves]
    count = sum(truth.numel() for _, truth, *_ in leaves)
    least = _LEAST_SCALE * math.sqrt(sum(sizes) / count) if count else 0.0
    for (name, truth, terms, moved, own, theirs), size in zip(leaves, sizes, strict=True):
        scale = max(math.sqrt(size / truth.numel()), least) or 1.0
        noise = torch.finfo(own.dtype).eps * terms
        scale = terms if noise > scale else scale  # what its terms leave is noise
        noise = max(noise, _gap(truth, moved))
        yield name, _gap(truth, own) / scale, _gap(truth, theirs) / scale, noise / scale, tolerance_of(own.dtype)


def _gap(truth: Tensor, given: Tensor) -> float:
    """Root mean square of the difference; what is equal, infinities and NaN too, differs by 0."""
    given = given.to(truth.dtype)
    gap = (truth - given).masked_fill((truth == given) | (truth.isnan() & given.isnan()), 0.0)
    return float(gap.square().mean().sqrt())


def _plain(value: Any) -> Any:
    return value.to_tuple() if hasattr(value, "to_tuple") else value


def _compared(expected: Any, given: Any) -> Difference:
    try:
        return compare(expected, given)
    except TypeError:  # a step that returns an object of its own: its model's state is compared
        return Difference()


def _gradients(model: nn.Module) -> dict[str, Any]:
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def _state(model: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in model.state_dict().items() if hasattr(value, "shape")}


_WIDER: Final = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
    torch.float64: torch.float64,
    torch.complex128: torch.complex128,
}
_PURGE: Final = 1024


class InFloat64(TorchDispatchMode):
    """While open, every op runs a second time on float64 shadows of its floating-point arguments.

    A shadow belongs to a storage, so that views, writes in place and tensors saved for backward find it. ``missing``
    counts the ops without a float64 form: their results are those of the program's own precision. Random numbers are
    the program's own. With ``stirs`` each result is off by as much as counts as no error, all of it or along a channel
    by the same, as kernels are that sum in another order. Raises TypeError for tensor subclasses that hold other
    tensors.
    """

    def __init__(self, *, stirs: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stirs = random.Random(0) if stirs else None
        self.missing: Counter[str] = Counter()
        self._shadows: dict[int, tuple[StorageWeakRef, Tensor, float]] = {}
        self._purge_at = _PURGE

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an op, and its shadow."""
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        for leaf in leaves:
            if is_traceable_wrapper_subclass(leaf):
                raise TypeError(f"tensors of class {type(leaf).__name__} have no float64 form")
        if func.is_view:
            return func(*args, **kwargs)
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        known = {_key(leaf) for leaf in leaves if _is_floating(leaf)}
        written = OpCall(func, args, kwargs).writes(written_by(func))
        own = any(isinstance(leaf, torch.Tensor) and not _is_floating(leaf) for leaf in written)
        wide = None if seeded or own else tree_map(self._widened, (args, kwargs))
        result = func(*args, **kwargs)
        results = tree_leaves(result)
        changed = [leaf for leaf in (*results, *written) if _is_floating(leaf)]
        if not changed:
            return result
        if seeded:
            self._randomly(func, args, changed)
        elif wide is None or not self._again(func, wide, results, known):
            self.missing[str(func._schema.name)] += 1
            for tensor in changed:
                self._put(tensor, tensor)
        return result

    def of(self, value: Any) -> Any:
        """A value that the program made, in float64: nested as it is, with integers and booleans as they are."""
        with torch.no_grad():
            return tree_map(lambda leaf: self._shadow(leaf).clone() if _is_floating(leaf) else leaf, value)

    def exact(self, value: Any) -> Exact:
        """The same, and the size of what its tensors sum."""
        known = {key: terms for key, (_, _, terms) in self._shadows.items()}
        return self.of(value), tree_map(lambda leaf: known.get(_key(leaf), 0.0) if _is_floating(leaf) else 0.0, value)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Follow the program that runs in the block."""
        with self, sdpa_kernel(SDPBackend.MATH):  # flash attention has no float64 form on GPUs
            yield

    def _again(self, func: Any, wide: Any, results: Sequence[Any], known: set[int]) -> bool:
        args, kwargs = wide
        if func in (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default):
            args = (*args[:2], False)  # half_to_float is of half inputs
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # of factories, and of quotients of integers
        try:
            answers = tree_leaves(func(*args, **kwargs))
        except Exception:  # kernels refuse dtypes by errors of many types
            return False
        finally:
            torch.set_default_dtype(default)
        # some kernels give a gradient that nobody asked for, others do not
        pairs = [
            (place, result, answer)
            for place, (result, answer) in enumerate(zip(results, answers, strict=False))
            if _is_floating(result) and answer is not None
        ]
        if len(results) != len(answers) or any(
            answer.shape != result.shape or answer.dtype is not _WIDER.get(result.dtype) for _, result, answer in pairs
        ):
            return False
        for place, result, answer in pairs:
            if _key(result) not in known:  # else it is an argument, written in place
                summed = _SUMS.get(func._schema.name) == place and result.numel()
                terms = float(args[0].abs().sum()) / result.numel() if summed else 0.0
                self._put(result, self._stirred(answer, _SHARE * tolerance_of(result.dtype)), terms)
        return True

    def _stirred(self, answer: Tensor, share: float) -> Tensor:
        if self._stirs is None or not answer.numel() or answer.is_complex():
            return answer
        size = share * float(answer.square().mean().sqrt())
        for dim in {1, answer.dim() - 1} & set(range(answer.dim())):
            signs = torch.tensor([self._stirs.choice((-1.0, 1.0)) for _ in range(answer.shape[dim])])
            shape = [-1 if place == dim else 1 for place in range(answer.dim())]
            answer = answer + size * signs.to(answer).reshape(shape)
        return answer + size * self._stirs.choice((-1.0, 1.0))

    def _randomly(self, func: Any, args: tuple[Any, ...], changed: Sequence[Tensor]) -> None:
        if func is torch.ops.aten.native_dropout.default and args[2] is not False:
            out = changed[0]
            scale = 0.0 if args[1] == 1 else 1 / (1 - args[1])
            # an element that is 0 anyway may count as dropped
            self._put(out, torch.where(out == 0, 0.0, self._shadow(args[0]) * scale))
            return
        for tensor in changed:
            self._put(tensor, tensor)

    def _widened(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype):
            return _WIDER.get(leaf, leaf)
        return self._shadow(leaf) if _is_floating(leaf) else leaf

    def _shadow(self, tensor: Tensor) -> Tensor:
        wider = _WIDER.get(tensor.dtype, torch.float64)
        if tensor.layout != torch.strided or tensor.dtype not in _WIDER:
            return tensor.detach().to(wider)
        storage, scale = tensor.untyped_storage(), wider.itemsize // tensor.dtype.itemsize
        found = self._shadows.get(storage._cdata)
        if found is None or found[1].untyped_storage().nbytes() != storage.nbytes() * scale:
            flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            flat.set_(storage, 0, (storage.nbytes() // tensor.dtype.itemsize,), (1,))
            found = StorageWeakRef(storage), flat.to(wider, copy=True), 0.0
            self._keep(storage._cdata, found)
        wide = torch.empty(0, dtype=wider, device=tensor.device)
        wide.set_(found[1].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        return wide.conj() if tensor.is_conj() else wide

    def _put(self, tensor: Tensor, value: Tensor, terms: float = 0.0) -> None:
        self._shadow(tensor).copy_(value.detach())
        if key := _key(tensor):
            self._shadows[key] = *self._shadows[key][:2], terms

    def _keep(self, key: int, entry: tuple[StorageWeakRef, Tensor, float]) -> None:
        if len(self._shadows) >= self._purge_at:
            self._shadows = {each: known for each, known in self._shadows.items() if not known[0].expired()}
            self._purge_at = 2 * len(self._shadows) + _PURGE
        self._shadows[key] = entry


def _is_floating(leaf: Any) -> TypeGuard[Tensor]:
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _key(tensor: Tensor) -> int:
    return 0 if tensor.layout != torch.strided else int(tensor.untyped_storage()._cdata)
