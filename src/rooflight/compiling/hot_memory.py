"""What earlier runs of a program found out about a hot loop, kept on disk: one small JSON file per kind of call."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from types import CodeType
from typing import Any, Final, Literal

import msgspec
import torch
from torch import nn

from rooflight.compiling.call_kinds import Kind
from rooflight.compiling.patterns import Pattern
from rooflight.devices.calibrations import folder
from rooflight.machine.environment import fingerprint
from rooflight.records.files import write_whole

_LARGEST: Final = 1 << 16


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
