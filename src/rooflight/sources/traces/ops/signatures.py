"""Signatures of the calls in a trace: each kind of call runs once on meta tensors, under the recorder of live programs.

The profiler's events have an op's name without its overload, and of its arguments the shapes, dtypes, strides and,
since torch 2.2, the settings. Its results follow from running it on tensors without contents, so that its costs are
those of a live recording.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import torch

from rooflight.records.signature import ALGORITHM, COMPUTED_IN, INCOMPLETE, AttributeValue, OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec, contiguous_strides
from rooflight.sources.capture.phases import phase
from rooflight.sources.capture.record.dispatch import is_composite
from rooflight.sources.capture.record.kernels import COMPOSITES
from rooflight.sources.capture.record.recorder import record
from rooflight.sources.traces.file.trace import HostArgs
from rooflight.sources.traces.ops.arguments import (
    DTYPES,
    LIST,
    NUMBERED,
    NUMBERS,
    Arguments,
    CannotRebuild,
    are_strides,
    is_shape,
    parsed,
)
from rooflight.sources.traces.ops.context import (
    CONVOLUTION_BACKWARD,
    NO_CONTEXT,
    CallContext,
    in_todays_form,
    with_settings,
)

RUNS_NOTHING: Final = "torch runs it as no op"
"""Why the signature of a call is incomplete that does nothing: dropout outside of training."""

_WRAPPED: Final = re.compile(r"(sglang_profiler::\w+?)_\d+")
"""SGLang's names of functions that it wraps for the profiler: module, name, and a number that counts them."""
_NO_SHAPES: Final = "the trace has no shapes of it: record it with record_shapes=True"
_NO_DTYPES: Final = "its dtypes are not noted, and its kernels do not show them"
_WITH_DUMMY: Final = re.compile(r"aiter::wrapper_(\w+)")
"""AITER's names in 2025 of ops whose first argument is a tensor that only torch's dispatcher needs."""
_ACCOUNTED_AS_ONE: Final = frozenset(composite.op._schema.name for composite in COMPOSITES)
_SHARED_BYTES: Final = 1 << 50
"""Of a storage without memory that several tensors share: larger than any."""

_FORWARD: Final = "q k v dropout_p softmax_scale causal window_size_left window_size_right"
_BACKWARD: Final = f"dout q k v out softmax_lse dq dk dv {_FORWARD.removeprefix('q k v ')}"
_LENGTHS: Final = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
_AITER_BACKWARD: Final = _BACKWARD.replace("dq dk dv ", "")
_KNOWN: Final = {
    "flash_attn::_flash_attn_forward": (_FORWARD, "q"),
    "flash_attn::_flash_attn_backward": (_BACKWARD, "q k v"),
    "flash_attn::_flash_attn_varlen_forward": (_FORWARD.replace("k v", f"k v {_LENGTHS}"), "q"),
    "flash_attn::_flash_attn_varlen_backward": (_BACKWARD.replace("dk dv", f"dk dv {_LENGTHS}"), "q k v"),
    "trace::FlashAttnFunc": ("q k v dropout_p softmax_scale causal", "q"),
    "aiter::_flash_attn_forward": (_FORWARD, "q"),
    "aiter::mha_fwd": (_FORWARD, "q"),
    "aiter::fmha_v3_fwd": (_FORWARD, "q"),
    "aiter::_flash_attn_backward": (_BACKWARD, "q k v"),
    "aiter::mha_bwd": (_AITER_BACKWARD, "q k v"),
    "aiter::fmha_v3_bwd": (_AITER_BACKWARD, "q k v"),
}
"""Of ops that torch does not have, the names of the first arguments, by which formulas know them, and of those that
results are like. Schemas: flash-attn's ``flash_attn_interface.py`` and AITER's ``aiter/ops/mha.py``. AITER adds
arguments from version to version behind those that are named here.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """A kind of call: its name, the description of its arguments, and what else the trace shows of it."""

    name: str
    args: HostArgs
    context: CallContext = NO_CONTEXT


def is_level(call: Call) -> bool:
    """Whether a recorder sees the op as it is: torch has it, and does not split it into others before."""
    if "::" not in call.name:
        return False
    if call.name in _ACCOUNTED_AS_ONE or call.name in CONVOLUTION_BACKWARD:
        return True
    split = _split_overloads(call.name)
    if len(set(split.values())) < 2:
        return bool(split) and not any(split.values())
    try:
        arguments = parsed(call.args)
        return arguments is not None and not split[overload_of(call.name, arguments).name()]
    except CannotRebuild:
        return False


@cache
def _split_overloads(name: str) -> Mapping[str, bool]:
    found = {}
    for overload in _overloads_of(name):
        try:
            found[overload.name()] = is_composite(overload)
        except RuntimeError:  # an overload of TorchScript alone
            continue
    return found


@dataclass(slots=True)
class _Rerun:
    """A kind of call by today's name of its op, its arguments, and why it cannot be run, if so."""

    name: str
    arguments: Arguments | None = None
    problem: str = ""

    @classmethod
    def of(cls, call: Call) -> _Rerun:
        try:
            arguments = parsed(call.args)
            if arguments is not None:
                return cls(*in_todays_form(call.name, arguments, call.context))
        except CannotRebuild as error:
            return cls(call.name, problem=str(error))
        return cls(call.name, problem=_NO_DTYPES if call.args.dims and not call.args.types else _NO_SHAPES)


def find_signatures(calls: Iterable[Call]) -> dict[Call, OpSignature]:
    """The signature of each kind of call. Calls run on meta tensors, under one recording.

    An op that torch does not have is described by its inputs alone. A call that cannot be run again is described so
    too, and its signature is ``incomplete``.
    """
    found: dict[Call, OpSignature] = {}
    reruns: dict[Call, _Rerun] = {}
    for call in dict.fromkeys(calls):
        if call.context.collective is not None:
            found[call] = call.context.collective
        else:
            reruns[call] = _Rerun.of(call)
    recorded = _run(reruns)
    for number, (call, rerun) in enumerate(reruns.items()):
        signatures = recorded[number]
        if not rerun.problem and len(signatures) == 1:
            found[call] = _as_it_ran(signatures[0], call.context)
        else:
            found[call] = _described(call, rerun, len(signatures))
    return found


def _run(reruns: Mapping[Call, _Rerun]) -> Mapping[int, list[OpSignature]]:
    dtypes = _dtypes_by_shape(rerun.arguments for rerun in reruns.values())
    with torch.no_grad(), record() as recording:
        for number, (call, rerun) in enumerate(reruns.items()):
            if rerun.arguments is None:
                continue
            try:
                overload = overload_of(rerun.name, rerun.arguments)
                names = [argument.name for argument in overload._schema.arguments]
                arguments = with_settings(rerun.name, names, rerun.arguments, call.context)
                list_dtype = _list_dtype(arguments, dtypes, call.context)
                args, keywords = _MetaCall(arguments, list_dtype, call.context.shared).of(overload)
                with phase(str(number)):
                    overload(*args, **keywords)
            except CannotRebuild as error:
                rerun.problem = str(error)
            except Exception as error:
                rerun.problem = f"it cannot be run on meta tensors: {str(error).splitlines()[0][:120]}"
    recorded: dict[int, list[OpSignature]] = defaultdict(list)
    for one in recording.session.records:
        if one.parent is None and one.phase:
            recorded[int(one.phase)].append(one.signature)
    return recorded


def _as_it_ran(op: OpSignature, context: CallContext) -> OpSignature:
    """With what the device did: algorithm, precision, and results, which may leave out what only backward reads."""
    shown = ((ALGORITHM, context.algorithm), (COMPUTED_IN, context.computed_in))
    known = (
        result if result and spec.storage == UNSHARED else spec
        for spec, result in zip(op.outputs, context.results, strict=False)
    )
    attributes = (*op.attributes, *(each for each in shown if each[1]))
    return replace(op, attributes=attributes, outputs=(*known, *op.outputs[len(context.results) :]))


def _described(call: Call, rerun: _Rerun, ops: int) -> OpSignature:
    name, arguments = call.name, rerun.arguments
    if wrapped := _WRAPPED.fullmatch(name):
        name = wrapped[1]
    elif dummy := _WITH_DUMMY.fullmatch(name):
        name, arguments = f"aiter::{dummy[1]}", arguments and arguments.behind(1)
    elif not re.fullmatch(r"\w+::\w+", name):  # a Triton kernel, a range of the profiler
        name = f"trace::{name}"
    op = OpSignature(name=name) if arguments is None else _of_inputs(name, arguments)
    facts = call.context.facts
    if arguments is None or _split_overloads(call.name):
        problem = rerun.problem or (f"torch runs it as {ops} ops" if ops else RUNS_NOTHING)
        facts = ((INCOMPLETE, problem), *facts)
    return replace(op, attributes=(*op.attributes, *facts)) if facts else op


def _of_inputs(name: str, arguments: Arguments) -> OpSignature:
    known, like = (text.split() for text in _KNOWN.get(name, ("", "")))
    try:
        names: Sequence[str] = [argument.name for argument in overload_of(name, arguments)._schema.arguments]
    except CannotRebuild:
        names = [*known, *(f"arg{place}" for place in range(len(known), len(arguments)))]
    inputs: dict[str, TensorSpec] = {}
    attributes: list[tuple[str, AttributeValue]] = []
    for place, key in enumerate(names[: len(arguments)]):
        dtype, dims, strides = arguments.dtype(place), arguments.dims[place], arguments.strides[place]
        if dtype is not None and is_shape(dims):
            strided = are_strides(strides) and len(strides) == len(dims) and strides != contiguous_strides(dims)
            inputs[key] = TensorSpec(tuple(dims), dtype, tuple(strides) if strided else None)
        elif arguments.types[place] in ("Scalar", "ScalarList"):
            value = _attribute(arguments.value(place))
            attributes += [] if value is None else [(key, value)]
    if "causal" in known and "causal" not in dict(attributes):
        attributes.append(("causal", True))  # traces before torch 2.2 leave it out: it is less work
    return OpSignature(
        name=name,
        inputs=tuple(inputs.values()),
        input_names=tuple(inputs),
        outputs=tuple(replace(inputs[each], strides=None) for each in like if each in inputs),
        attributes=tuple(attributes),
    )


def _attribute(text: str) -> AttributeValue:
    if text in ("True", "False"):
        return text == "True"
    try:
        if text.startswith("["):
            return tuple(int(item) for item in text.strip("[]").split(",") if item.strip())
        return int(text)
    except ValueError:
        return None


def _dtypes_by_shape(calls: Iterable[Arguments | None]) -> Mapping[tuple[int, ...], set[str]]:
    found: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for arguments in calls:
        for dims, type_ in zip(arguments.dims, arguments.types, strict=True) if arguments is not None else ():
            if (dtype := DTYPES.get(type_)) and isinstance(dims, list) and all(isinstance(d, int) for d in dims):
                found[tuple(dims)].add(dtype)
    return found


def _list_dtype(arguments: Arguments, dtypes: Mapping[tuple[int, ...], set[str]], context: CallContext) -> str | None:
    """Of tensors in lists: the one its kernel allows, or that all tensors of these shapes have in the trace."""
    candidates: set[str] = set()
    for place, type_ in enumerate(arguments.types):
        for dims in arguments.dims[place] if type_ == LIST else ():
            candidates |= dtypes.get(tuple(dims) if isinstance(dims, list) else (), set())
    if not context.dtypes:
        return next(iter(candidates)) if len(candidates) == 1 else None
    return next((dtype for dtype in context.dtypes if dtype in candidates), context.dtypes[0])


def overload_of(name: str, found: Arguments) -> Any:
    """The overload of torch's op ``name`` ("aten::add") that takes such arguments.

    Raises CannotRebuild if torch has no such op or none of its overloads takes them.
    """
    overloads = list(_overloads_of(name))
    if not overloads:
        raise CannotRebuild("this torch has no such op")
    fitting = [each for each in overloads if _fits(each._schema.arguments, found)]
    if not fitting:
        raise CannotRebuild("no overload of it takes such arguments")
    exact = [each for each in fitting if len(each._schema.arguments) == len(found)]
    return (exact or fitting)[0]


def _overloads_of(name: str) -> Iterator[Any]:
    namespace, _, op = name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, namespace), op)
    except (AttributeError, RuntimeError):
        return
    for overload in packet.overloads():
        yield getattr(packet, overload)


def _fits(arguments: Sequence[Any], found: Arguments) -> bool:
    """Whether arguments as described can be those of a schema. Older traces end before the arguments with defaults."""
    if len(found) > len(arguments):
        return False
    if any(not argument.has_default_value() for argument in arguments[len(found) :]):
        return False
    return all(_fits_one(argument, found, index) for index, argument in enumerate(arguments[: len(found)]))


def _fits_one(argument: Any, found: Arguments, index: int) -> bool:
    kind = str(argument.type)
    type_, is_tensor = found.types[index], found.dtype(index) is not None
    optional = kind.startswith("Optional[")
    kind = kind.removeprefix("Optional[").removesuffix("]") if optional else kind
    if kind == "Tensor":
        return is_tensor or (type_ == "" and optional)
    if kind.startswith("List[") and "Tensor" in kind:
        return type_ in (LIST, "GenericList", "")
    if is_tensor or type_ == LIST:
        return False
    return type_ not in ("Scalar", "ScalarList") or kind.startswith("List[") == (type_ == "ScalarList")


class _MetaCall:
    """A call on meta tensors. ``list_dtype``: that of tensors in lists, whose dtypes the profiler leaves out.
    ``shared``: by tensor the storage that it shares with others and where it begins there, ``UNSHARED`` for one that
    shares none; where they are fewer, the others share none. Tensors of one storage are views of it.
    """

    def __init__(self, found: Arguments, list_dtype: str | None, shared: Sequence[tuple[int, int]]) -> None:
        self._found, self._list_dtype, self._places = found, list_dtype, iter(shared)
        self._storages: dict[int, torch.UntypedStorage] = {}

    def of(self, overload: Any) -> tuple[list[Any], dict[str, Any]]:
        """Arguments and keywords. Raises CannotRebuild for a missing setting without a default."""
        given: list[Any] = []
        keywords: dict[str, Any] = {}
        arguments = overload._schema.arguments
        for index, argument in enumerate(arguments[: len(self._found)]):
            value = self._argument(argument, index)
            if argument.kwarg_only:
                keywords[argument.name] = value
            else:
                given.append(value)
        if "device" in (argument.name for argument in arguments):
            keywords["device"] = torch.device("meta")
        return given, keywords

    def _argument(self, argument: Any, index: int) -> Any:
        dims, strides = self._found.dims[index], self._found.strides[index]
        if (dtype := self._found.dtype(index)) is not None:
            if argument.name == "other" and dims == [] and dtype in NUMBERS:
                next(self._places, None)
                return NUMBERS[dtype]
            return self._tensor(dims, dtype, strides)
        return self._tensors(index) if self._found.types[index] == LIST else _setting(argument, self._found, index)

    def _tensor(self, dims: Any, dtype: str, strides: Any) -> torch.Tensor:
        if not is_shape(dims):
            raise CannotRebuild(f"its shape {str(dims)[:40]} is none")
        if not (are_strides(strides) and len(strides) == len(dims)):
            strides = contiguous_strides(dims)
        made = torch.empty_strided(dims, strides, dtype=getattr(torch, dtype), device="meta")
        storage, start = next(self._places, (UNSHARED, 0))
        if storage == UNSHARED:
            return made
        if storage not in self._storages:
            self._storages[storage] = torch.empty(_SHARED_BYTES, dtype=torch.uint8, device="meta").untyped_storage()
        held = torch.empty(0, dtype=made.dtype, device="meta")
        return held.set_(self._storages[storage], start, made.shape, made.stride())

    def _tensors(self, index: int) -> list[torch.Tensor]:
        found, listed = self._found, self._found.dims[index]
        if not listed and index not in found.list_dtypes:
            raise CannotRebuild("the trace leaves out the shapes of its list of tensors")
        dtypes: Sequence[str | None] = found.list_dtypes.get(index) or [self._list_dtype] * len(listed)
        if None in dtypes:
            raise CannotRebuild("the dtype of a list of tensors is in no trace, and nothing near it shows it")
        strides = found.strides[index]
        if not isinstance(strides, list) or len(strides) != len(listed):
            strides = [None] * len(listed)
        return [self._tensor(*each) for each in zip(listed, map(str, dtypes), strides, strict=True)]


def _setting(argument: Any, found: Arguments, index: int) -> Any:
    text, kind, real = found.value(index), str(argument.type), str(argument.real_type)
    if text in ("", "None"):
        return _missing_setting(argument, kind, values=found.values is not None)
    if "ScalarType" in real:
        return _numbered_dtype(text)
    if any(each in real for each in ("Layout", "MemoryFormat", "Device", "Generator")):
        return None
    return text if "str" in kind else _number(text, argument.name)


def _missing_setting(argument: Any, kind: str, *, values: bool) -> Any:
    """The setting where there is no text; ``values``: the trace has texts of the others."""
    if kind.startswith("Optional["):
        return None
    if argument.has_default_value():
        return argument.default_value
    if values and kind.startswith("List["):
        return []
    raise CannotRebuild(f"the trace does not contain its {argument.name}")


def _numbered_dtype(text: str) -> torch.dtype:
    if text.isdecimal() and int(text) < len(NUMBERED):
        dtype = getattr(torch, NUMBERED[int(text)], None)
        if isinstance(dtype, torch.dtype):
            return dtype
    raise CannotRebuild(f"the trace has {text[:20]} for a dtype")


def _number(text: str, name: str) -> Any:
    if text.startswith(("[", "(")):
        items = text.strip("[]()").split(",")
        return [_number(item.strip(), name) for item in items if item.strip()]
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text) if any(mark in text for mark in ".einf") else int(text)
    except ValueError as error:
        raise CannotRebuild(f"the trace has {text[:20]!r} for its {name}") from error
