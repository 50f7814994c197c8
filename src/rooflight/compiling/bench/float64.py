"""The same program in float64: each op of a run once more, on shadows of its tensors in double precision.

Rounding makes a compiled program differ from the eager one, and neither is the truth. Both are therefore compared with
a float64 run, as torch's own benchmarks do. The run keeps the program's control flow: what it reads as a number, and
every integer and boolean, is that of the program's own precision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from torch import Tensor

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
    the program's own. Raises TypeError for tensor subclasses that hold other tensors.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.missing: Counter[str] = Counter()
        self._shadows: dict[int, tuple[StorageWeakRef, Tensor]] = {}
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
        written = _written(func, args, kwargs)
        own = any(isinstance(leaf, torch.Tensor) and not _is_floating(leaf) for leaf in written)
        wide = None if seeded or own else tree_map(self._widened, (args, kwargs))
        result = func(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(result) if _is_floating(leaf)]
        changed = [*results, *(leaf for leaf in written if _is_floating(leaf))]
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

    def _again(self, func: Any, wide: Any, results: Sequence[Tensor], known: set[int]) -> bool:
        """Run an op on shadows. Returns whether that gave a result in float64 for each of its own."""
        args, kwargs = wide
        if func in (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default):
            args = (*args[:2], False)  # half_to_float is of half inputs
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # of factories, and of quotients of integers
        try:
            answers = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if _is_floating(leaf)]
        except Exception:  # kernels refuse dtypes by errors of many types
            return False
        finally:
            torch.set_default_dtype(default)
        if [answer.shape for answer in answers] != [result.shape for result in results]:
            return False
        if any(answer.dtype is not _WIDER.get(result.dtype) for answer, result in zip(answers, results, strict=True)):
            return False
        for result, answer in zip(results, answers, strict=True):
            if _key(result) not in known:  # else it is an argument, written in place
                self._put(result, answer)
        return True

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
        """The tensor in float64, with its strides; of its own values where no op wrote it while the mode was open."""
        wider = _WIDER.get(tensor.dtype, torch.float64)
        if tensor.layout != torch.strided or tensor.dtype not in _WIDER:
            return tensor.detach().to(wider)
        storage, scale = tensor.untyped_storage(), wider.itemsize // tensor.dtype.itemsize
        found = self._shadows.get(storage._cdata)
        if found is None or found[1].untyped_storage().nbytes() != storage.nbytes() * scale:
            flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            flat.set_(storage, 0, (storage.nbytes() // tensor.dtype.itemsize,), (1,))
            found = StorageWeakRef(storage), flat.to(wider, copy=True)
            self._keep(storage._cdata, found)
        wide = torch.empty(0, dtype=wider, device=tensor.device)
        wide.set_(found[1].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        return wide.conj() if tensor.is_conj() else wide

    def _put(self, tensor: Tensor, value: Tensor) -> None:
        """Let a tensor's shadow have these values."""
        self._shadow(tensor).copy_(value.detach())

    def _keep(self, key: int, entry: tuple[StorageWeakRef, Tensor]) -> None:
        if len(self._shadows) >= self._purge_at:
            self._shadows = {each: known for each, known in self._shadows.items() if not known[0].expired()}
            self._purge_at = 2 * len(self._shadows) + _PURGE
        self._shadows[key] = entry


def _is_floating(leaf: Any) -> TypeGuard[Tensor]:
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _key(tensor: Tensor) -> int:
    return 0 if tensor.layout != torch.strided else int(tensor.untyped_storage()._cdata)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What an op's schema says that it writes among its arguments, lists taken apart."""
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    return [
        leaf
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for leaf in tree_leaves(given.get(argument.name))
    ]
