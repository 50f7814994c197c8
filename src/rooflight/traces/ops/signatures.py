"""Signatures of the calls in a trace, worked out once for each kind of call."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import torch

from rooflight.capture.phases import phase
from rooflight.capture.record.dispatch import is_composite
from rooflight.capture.record.kernels import COMPOSITES
from rooflight.capture.record.recorder import record
from rooflight.records.signature import ALGORITHM, COMPUTED_IN, INCOMPLETE, LEAST_PAIRS, AttributeValue, OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec
from rooflight.traces.file.trace import HostArgs
from rooflight.traces.ops.arguments import (
    DTYPES,
    KNOWN,
    LIST,
    CannotRebuild,
    Described,
    Known,
    are_strides,
    arguments_of,
    contiguous_strides,
    described,
    is_shape,
    overload_of,
    overloads_of,
)
from rooflight.traces.ops.context import NOTHING, Clues
from rooflight.traces.ops.settings import CONVOLUTION_BACKWARD, as_today, with_untold

_WRAPPED: Final = re.compile(r"(sglang_profiler::\w+?)_\d+")
"""SGLang's names of functions that it wraps for the profiler: module, name, and a number that counts them."""
_NO_SHAPES: Final = "the trace has no shapes of it: record it with record_shapes=True"

RUNS_NOTHING: Final = "torch runs it as no op"
"""Why the signature of a call is incomplete that does nothing: dropout outside of training."""

_WITH_DUMMY: Final = re.compile(r"aiter::wrapper_(\w+)")
"""AITER's names in 2025 of ops whose first argument is a tensor that only torch's dispatcher needs."""
_CAUSAL: Final = "causal"
_PACKED: Final = frozenset({"cu_seqlens_q"})
_BY_PLACE: Final = Known((), ())

_ACCOUNTED_AS_ONE: Final = frozenset(composite.op._schema.name for composite in COMPOSITES)


@dataclass(frozen=True, slots=True)
class Call:
    """A kind of call: its name, what was noted of its arguments, and what else the trace tells of it."""

    name: str
    args: HostArgs
    clues: Clues = NOTHING


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
        noted = described(call.args)
        return noted is not None and not split[overload_of(call.name, noted).name()]
    except CannotRebuild:
        return False


@cache
def _split_overloads(name: str) -> Mapping[str, bool]:
    """For each overload whether torch splits it; empty if torch has no such op."""
    found = {}
    for overload in overloads_of(name):
        try:
            found[overload.name()] = is_composite(overload)
        except RuntimeError:  # an overload of TorchScript alone
            continue
    return found


def find_signatures(calls: Iterable[Call]) -> dict[Call, OpSignature]:
    """The signature of each kind of call. Calls run on meta tensors, under one recording.

    An op that torch does not have is described by what was noted of its inputs alone. A call that cannot be run again
    is described so too, and its signature is ``incomplete``.
    """
    distinct = list(dict.fromkeys(calls))
    found = {call: call.clues.collective for call in distinct if call.clues.collective is not None}
    told = {call: _told(call) for call in distinct if call not in found}
    dtypes = _dtypes_by_shape(each.noted for each in told.values())
    ran = _run(told, dtypes)
    for number, (call, each) in enumerate(told.items()):
        signatures = ran[number]
        if not each.problem and len(signatures) == 1:
            (op,) = signatures
            how = ((ALGORITHM, call.clues.algorithm), (COMPUTED_IN, call.clues.computed_in))
            if told_too := tuple((key, value) for key, value in how if value):
                op = replace(op, attributes=(*op.attributes, *told_too))
            found[call] = replace(op, outputs=_as_they_were(op.outputs, call.clues.results))
            continue
        op = OpSignature(name=_op_name(call.name))
        if each.noted is not None:
            op = _as_noted(op.name, each.noted.behind(1) if _WITH_DUMMY.fullmatch(call.name) else each.noted)
        if each.noted is None or _split_overloads(call.name):
            problem = each.problem or (f"torch runs it as {len(signatures)} ops" if signatures else RUNS_NOTHING)
            op = replace(op, attributes=(*op.attributes, (INCOMPLETE, problem)))
        found[call] = replace(op, attributes=(*op.attributes, *call.clues.facts)) if call.clues.facts else op
    return found


def _as_they_were(outputs: tuple[TensorSpec, ...], results: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
    """Results as the device returned them, where that is known: it may leave out what only a backward pass reads."""
    known = (
        result if result and spec.storage == UNSHARED else spec for spec, result in zip(outputs, results, strict=False)
    )
    return (*known, *outputs[len(results) :])


@dataclass(slots=True)
class _Told:
    """A call as today's torch names it, what was noted of it, and why it cannot be run, if so."""

    name: str
    noted: Described | None = None
    problem: str = ""


def _told(call: Call) -> _Told:
    try:
        noted = described(call.args)
        if noted is None:
            untyped = bool(call.args.dims) and not call.args.types
            why = "its dtypes are not noted, and its kernels do not show them" if untyped else _NO_SHAPES
            return _Told(call.name, problem=why)
        return _Told(*as_today(call.name, noted, call.clues))
    except CannotRebuild as error:
        return _Told(call.name, problem=str(error))


def _run(told: Mapping[Call, _Told], dtypes: Mapping[tuple[int, ...], set[str]]) -> Mapping[int, list[OpSignature]]:
    """The signatures that each call leaves when it is run on meta tensors. Notes why a call cannot be run."""
    with torch.no_grad(), record() as recording:
        for number, (call, each) in enumerate(told.items()):
            if each.noted is None:
                continue
            try:
                overload = overload_of(each.name, each.noted)
                names = [argument.name for argument in overload._schema.arguments]
                noted = with_untold(each.name, names, each.noted, call.clues)
                list_dtype = _list_dtype(noted, dtypes, call.clues)
                args, keywords = arguments_of(overload, noted, list_dtype, call.clues.shared)
                with phase(str(number)):
                    overload(*args, **keywords)
            except CannotRebuild as error:
                each.problem = str(error)
            except Exception as error:
                each.problem = f"it cannot be run on meta tensors: {str(error).splitlines()[0][:120]}"
    ran: dict[int, list[OpSignature]] = defaultdict(list)
    for one in recording.session.records:
        if one.parent is None and one.phase:
            ran[int(one.phase)].append(one.signature)
    return ran


def _op_name(name: str) -> str:
    """The name of an op, with the namespace "trace" for what is none: a Triton kernel, a range of the profiler."""
    if wrapped := _WRAPPED.fullmatch(name):
        return wrapped[1]
    if wrapped := _WITH_DUMMY.fullmatch(name):
        return f"aiter::{wrapped[1]}"
    return name if re.fullmatch(r"\w+::\w+", name) else f"trace::{name}"


def _as_noted(name: str, noted: Described) -> OpSignature:
    """A signature of what was noted alone: inputs named by the op's schema, or by their places."""
    known = KNOWN.get(name, _BY_PLACE)
    try:
        names: Sequence[str] = [argument.name for argument in overload_of(name, noted)._schema.arguments]
    except CannotRebuild:
        names = known.named(len(noted))
    inputs: list[TensorSpec] = []
    input_names: list[str] = []
    attributes: list[tuple[str, AttributeValue]] = []
    for place, key in enumerate(names[: len(noted)]):
        dtype, dims = noted.dtype(place), noted.dims[place]
        if dtype is not None and is_shape(dims):
            strides = noted.strides[place]
            plain = are_strides(strides) and len(strides) == len(dims) and strides != contiguous_strides(dims)
            inputs.append(TensorSpec(tuple(dims), dtype, tuple(strides) if plain else None))
            input_names.append(key)
        elif noted.types[place] in ("Scalar", "ScalarList") and (value := _attribute(noted.value(place))) is not None:
            attributes.append((key, value))
    if _CAUSAL in known.names and _CAUSAL not in dict(attributes):
        attributes.append((_CAUSAL, True))  # traces before torch 2.2 do not tell it: it is less work
    if _PACKED & set(known.names):
        attributes.append((LEAST_PAIRS, True))
    return OpSignature(
        name=name,
        inputs=tuple(inputs),
        input_names=tuple(input_names),
        outputs=tuple(
            replace(inputs[input_names.index(like)], strides=None) for like in known.like if like in input_names
        ),
        attributes=tuple(attributes),
    )


def _attribute(text: str) -> AttributeValue:
    """An int, a bool or a list of ints; None for other texts."""
    if text in ("True", "False"):
        return text == "True"
    try:
        if text.startswith("["):
            return tuple(int(item) for item in text.strip("[]").split(",") if item.strip())
        return int(text)
    except ValueError:
        return None


def _dtypes_by_shape(notes: Iterable[Described | None]) -> Mapping[tuple[int, ...], set[str]]:
    """All dtypes that tensors of each shape have in the trace."""
    found: dict[tuple[int, ...], set[str]] = defaultdict(set)
    for noted in notes:
        if noted is not None:
            for place, type_ in enumerate(noted.types):
                dims = noted.dims[place]
                if (dtype := DTYPES.get(type_)) and isinstance(dims, list) and all(isinstance(d, int) for d in dims):
                    found[tuple(dims)].add(dtype)
    return found


def _list_dtype(noted: Described, dtypes: Mapping[tuple[int, ...], set[str]], clues: Clues) -> str | None:
    """The dtype of the tensors in a call's lists: of those that its kernel allows, that of all tensors of the same
    shapes in the trace, if it is one. If none of them is, the first that the kernel allows: they have one size.
    """
    candidates: set[str] = set()
    for place, type_ in enumerate(noted.types):
        if type_ == LIST:
            for dims in noted.dims[place]:
                candidates |= dtypes.get(tuple(dims) if isinstance(dims, list) else (), set())
    if not clues.dtypes:
        return next(iter(candidates)) if len(candidates) == 1 else None
    return next((dtype for dtype in clues.dtypes if dtype in candidates), clues.dtypes[0])
