"""What became of a kind of call, kept on disk for the program's next run under a key: one small JSON file per kind.

Part of the key is the pattern of a call: its recorded operations as one signature.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import CodeType
from typing import Any, Final, Literal

import msgspec
import numpy as np

from rooflight.compiling.hot.calls import Kind
from rooflight.devices.calibrations import folder
from rooflight.machine.environment import fingerprint
from rooflight.records.files import write_whole
from rooflight.records.record import Direction
from rooflight.records.session import Session
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

_LARGEST: Final = 1 << 16
_RANDOM: Final = ("rand", "bernoulli", "dropout", "normal_", "uniform_", "multinomial", "exponential_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Two calls have the same ``exact`` if they ran the same operations, wired alike, on the same dtypes, devices and
    sizes; the same ``shape_free`` if only sizes differ. Wiring: which earlier result, or which memory from outside,
    is each operand.
    """

    operations: int
    exact: bytes
    shape_free: bytes
    random: bool
    backward: bool
    optimizer: bool


def pattern_of(session: Session) -> Pattern:
    """The pattern of the counted records of a session."""
    columns = session.columns
    counted = np.flatnonzero(session.counted)
    numbers = columns.signature[counted]
    wiring = _wiring(session, counted)
    hashes = []
    for describe in (_exact, _shape_free):
        texts = [describe(op) for op in session.signatures]
        kinds = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        digest = blake2b(digest_size=16)
        # the kinds in order of their first call, so that their numbers do not depend on what else was recorded
        order: dict[int, int] = {}
        for number in numbers.tolist():
            order.setdefault(kinds[texts[number]], len(order))
        names = list(kinds)
        digest.update("\n".join(names[kind] for kind in order).encode())
        digest.update(np.array([order[kinds[texts[n]]] for n in numbers.tolist()], dtype=np.int64).tobytes())
        digest.update(wiring)
        hashes.append(digest.digest())
    used = {session.signatures[number].name for number in set(numbers.tolist())}
    directions = set(columns.direction[counted].tolist())
    return Pattern(
        operations=len(counted),
        exact=hashes[0],
        shape_free=hashes[1],
        random=any(part in name for name in used for part in _RANDOM),
        backward=int(Direction.BACKWARD) in directions,
        optimizer=int(Direction.OPTIMIZER) in directions,
    )


def _wiring(session: Session, counted: np.ndarray) -> bytes:
    columns = session.columns
    order: dict[int, int] = {}
    flat: list[int] = []
    reads, writes = columns.read_ids.tolist(), columns.written_ids.tolist()
    read_ends, write_ends = columns.read_offsets.tolist(), columns.written_offsets.tolist()
    for index in counted.tolist():
        for ids, ends in ((reads, read_ends), (writes, write_ends)):
            flat.append(-1)
            flat += [order.setdefault(number, len(order)) for number in ids[ends[index] : ends[index + 1]]]
    return np.array(flat, dtype=np.int64).tobytes()


def _exact(op: OpSignature) -> str:
    return repr(op)


def _shape_free(op: OpSignature) -> str:
    return f"{op.name} {[_rank(spec) for spec in op.inputs]} {[_rank(spec) for spec in op.outputs]}"


def _rank(spec: TensorSpec | None) -> str:
    return "-" if spec is None else f"{len(spec.shape)}:{spec.dtype}"


class Remembered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a trial: ``compiled``, with the speed-up and the seconds that compiling took, or ``eager``, and
    why. ``blocks``: only blocks that are alike were compiled.
    """

    outcome: Literal["compiled", "eager"]
    reason: str = ""
    speedup: float | None = None
    compile_s: float | None = None
    blocks: bool = False
    schema: Literal["rooflight.hot-path/1"] = "rooflight.hot-path/1"


def key_of(eager: Callable[..., Any], kind: Kind, pattern: Pattern, *, one_size: bool, how: str) -> str:
    """What the outcome depends on: code, kind of call, operations with their sizes, versions, machine, and how the
    loop is compiled.
    """
    import torch

    digest = blake2b(digest_size=16)
    for part in (
        *_code(eager),
        repr(kind),
        (pattern.exact if one_size else pattern.shape_free).hex(),
        torch.__version__,
        platform.python_version(),
        fingerprint("cuda" if "cuda" in repr(kind) else "cpu"),
        how,
    ):
        digest.update(f"{part}\n".encode())
    return digest.hexdigest()


def recall(key: str) -> Remembered | None:
    """What was found out under this key; None where nothing was, or where the file is not one that this wrote."""
    try:
        path = _path(key)
        if path.stat().st_size > _LARGEST:
            return None
        return msgspec.json.decode(path.read_bytes(), type=Remembered)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None


def remember(key: str, found: Remembered) -> None:
    """Keep what was found out. Nothing is kept where the folder cannot be written."""
    with contextlib.suppress(OSError):
        path = _path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(found))


def _path(key: str) -> Path:
    return folder() / "hot_paths" / f"{key}.json"


def _code(eager: Callable[..., Any]) -> Iterator[str]:
    from torch import nn

    module = getattr(eager, "__self__", None)
    if isinstance(module, nn.Module):
        for name, inner in module.named_modules():
            yield f"{name} {type(inner).__qualname__}"
            yield from _of_code(getattr(type(inner).forward, "__code__", None))
        yield from (f"{name} {tuple(value.shape)} {value.dtype}" for name, value in module.named_parameters())
    else:
        yield getattr(eager, "__qualname__", type(eager).__qualname__)
        yield from _of_code(getattr(eager, "__code__", None))


def _of_code(code: CodeType | None) -> Iterator[str]:
    if code is not None:
        yield code.co_code.hex()
        yield repr(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _of_code(constant)
            else:
                yield repr(constant)
