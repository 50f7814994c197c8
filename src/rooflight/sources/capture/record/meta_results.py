"""Results on the meta device, computed once per kind of call.

An op on meta computes nothing but the shape, strides and dtype of its result, and many do that in Python: 30 to 600 µs
per call. A recurrent network makes the same few calls in each of its time steps. So only the first call of a kind runs;
later calls with the same kind of arguments return new tensors like its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import torch
from torch._C import DisableTorchFunction as Unnoticed
from torch._C import _len_torch_dispatch_stack

from rooflight.sources.capture.record.signatures import tensors_in

Run = Callable[..., Any]

_aten = torch.ops.aten
_storage_id = torch._C._storage_id  # type: ignore[attr-defined]

_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_VALUES: Final = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format, torch.layout}
)
_LAYOUTS: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
_MOST_KINDS: Final = 1 << 14
_UNKNOWN: Final = object()

_Made = tuple[torch.Size, tuple[int, ...], torch.dtype]
_Key = tuple[Any, ...]


class _OddError(Exception):
    """A call that a key cannot describe completely."""


def remembering(func: Any, run: Run) -> Run:
    """``run``, which calls the op ``func``. It runs once per kind of call if the op's results depend on nothing but the
    kinds of its arguments: if the op makes new tensors, or writes and returns its first argument.

    A call always runs if its tensors are not plain ones on meta, and while other dispatch modes are active.
    """
    packet = getattr(func, "overloadpacket", None)
    if func in _WITHOUT_RULE:
        run = partial(_WITHOUT_RULE[func], run)
    if packet in (_aten.clone, _aten.add_):
        run = partial(_with_sparse, run)
    if packet is _aten.convolution:
        run = partial(_in_its_layout, run)
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.arguments or str(schema.arguments[0].type) != "Tensor":
        return run
    aliases = [each.alias_info for each in schema.arguments]
    returned = [each.alias_info for each in schema.returns]
    if not any(aliases) and returned and not any(returned):
        return _remembering(run, _learn_new, _make_again)
    in_place = aliases[0] is not None and aliases[0].is_write and not any(aliases[1:])
    if not in_place or len(returned) != 1 or returned[0] is None:
        return run

    def written_again(_known: Any, args: _Key, kwargs: dict[str, Any]) -> Any:
        # if another argument shares the memory of the first, the call runs, so that torch can check for overlaps
        return run(*args, **kwargs) if _shares_first(args) else args[0]

    return _remembering(run, _learn_written, written_again)


def _equal(run: Run, x: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors without values are one: torch asks so whether something is odd (``torch.cov``)."""
    return bool(x is other if x.is_meta else run(x, other))


def _into_out(run: Run, *args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    made: torch.Tensor = _aten._scaled_mm(*args, **kwargs) if out.is_meta else run(*args, out=out, **kwargs)
    return out if made.shape == out.shape else out.resize_(made.shape)


def _int4(run: Run, x: torch.Tensor, packed: torch.Tensor, *args: Any) -> torch.Tensor:
    """x [m, k] times a weight [n, k], packed as [n / 8, ...]; torch's own rule for meta asks for a fake tensor."""
    out: torch.Tensor = x.new_empty(x.shape[0], 8 * packed.shape[0]) if x.is_meta else run(x, packed, *args)
    return out


_WITHOUT_RULE: Final[dict[Any, Callable[..., Any]]] = {
    _aten.equal.default: _equal,
    _aten._scaled_mm.out: _into_out,
    _aten._weight_int4pack_mm.default: _int4,
}
"""Ops that torch does not run on meta."""


def _with_sparse(run: Run, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``run``, which copies x or adds to it. On meta torch loses what a COO tensor stores as it copies it, and adds it
    to no dense one.
    """
    if not x.is_meta or x.layout is not torch.sparse_coo:
        added = args and isinstance(args[0], torch.Tensor) and args[0].layout is torch.sparse_coo
        return x if added and x.is_meta else run(x, *args, **kwargs)
    if args:
        return run(x, *args, **kwargs)
    sizes, parts = (x.sparse_dim(), x.dense_dim(), x.shape), (x._indices().clone(), x._values().clone())
    options = {"dtype": x.dtype, "layout": x.layout, "device": x.device, "is_coalesced": x.is_coalesced()}
    return _aten._sparse_coo_tensor_with_dims_and_tensors(*sizes, *parts, **options)


def _in_its_layout(run: Run, x: torch.Tensor, weight: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``run``, a convolution: its result is channels-last where its image or weight is, as on a CPU and with cuDNN. On
    meta torch leaves it contiguous.
    """
    out = run(x, weight, *args, **kwargs)
    with Unnoticed():
        layout = _LAYOUTS.get(out.dim()) if out.is_meta else None
        strided = [each for each in (x, weight) if not each.is_contiguous()]
        if layout is None or not any(each.is_contiguous(memory_format=layout) for each in strided):
            return out
        return torch.empty_like(out, memory_format=layout)


def _remembering(
    run: Run, learn: Callable[[Any, _Key, _Key], Any], again: Callable[[Any, _Key, dict[str, Any]], Any]
) -> Run:
    """``again`` makes later results of a kind of call from what ``learn`` returned of the first, unless None."""
    known: dict[_Key, Any] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        key = None if _len_torch_dispatch_stack() else _key_of(args, kwargs)
        if key is None:
            return run(*args, **kwargs)
        learnt = known.get(key, _UNKNOWN)
        if learnt is None:
            return run(*args, **kwargs)
        if learnt is not _UNKNOWN:
            return again(learnt, args, kwargs)
        before = _place(args[0])
        out = run(*args, **kwargs)
        if len(known) >= _MOST_KINDS:  # some number differs from call to call
            known.clear()
        known[key] = learn(out, args, before)
        return out

    return call


def _learn_new(out: Any, args: _Key, _before: _Key) -> tuple[bool, list[_Made]] | None:
    several = isinstance(out, tuple)
    given = {_storage_id(tensor) for tensor in tensors_in(args)}
    made = [_made(result, given) for result in (out if several else (out,))]
    known = [each for each in made if each is not None]
    return (several, known) if len(known) == len(made) else None


def _make_again(learnt: Any, _args: _Key, _kwargs: dict[str, Any]) -> Any:
    several, results = learnt
    with Unnoticed():  # torch function modes must get the program's calls, not this one
        made = [torch.empty_strided(size, stride, dtype=dtype, device="meta") for size, stride, dtype in results]
    return tuple(made) if several else made[0]


def _learn_written(out: Any, args: _Key, before: _Key) -> bool | None:
    return True if out is args[0] and _place(out) == before and not _shares_first(args) else None


def _key_of(args: _Key, kwargs: dict[str, Any]) -> _Key | None:
    key: list[Any] = [torch.get_default_dtype()]  # the dtype of a number beside a tensor of integers
    try:
        _add(key, args)
        if kwargs:
            key.extend(kwargs)
            _add(key, kwargs.values())
        whole = tuple(key)
        hash(whole)
    except (_OddError, RuntimeError, TypeError):  # layouts without strides, symbolic sizes
        return None
    return whole


def _add(key: list[Any], values: Iterable[Any]) -> None:
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            if not value.is_meta or value.dtype.is_complex or value.layout is not torch.strided:
                raise _OddError
            key += value.shape, value.stride(), value.dtype
        elif kind in _VALUES:
            key += kind, value  # 1, 1.0 and True are equal, and promote differently
        elif kind is list or kind is tuple:
            key.append(len(value))
            _add(key, value)
        else:
            raise _OddError


def _made(result: Any, given: set[int]) -> _Made | None:
    """What is needed to make the same tensor anew; None for one that is more than its shape, strides and dtype."""
    if type(result) is not torch.Tensor or not result.is_meta or result.layout is not torch.strided:
        return None
    if result.requires_grad or result.dtype.is_complex or result.is_quantized or _storage_id(result) in given:
        return None
    made = result.shape, result.stride(), result.dtype
    with Unnoticed():
        again = torch.empty_strided(*made[:2], dtype=made[2], device="meta")
    return made if _form(again) == _form(result) else None


def _form(tensor: torch.Tensor) -> _Key:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.storage_offset(), tensor.untyped_storage().nbytes()


def _place(tensor: torch.Tensor) -> _Key:
    return *_form(tensor), _storage_id(tensor)


def _shares_first(args: _Key) -> bool:
    first = _storage_id(args[0])
    return any(type(value) in _PLAIN and _storage_id(value) == first for value in args[1:])
