"""Events that are not as torch's profiler writes them: read field by field, what cannot be read left out of the event.

Some are of versions with faults (an id above 2^63, ``nan`` for a number, a path of Windows with single backslashes, a
name that is no UTF-8), some of files that other programs wrote or changed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, get_type_hints

import msgspec

from rooflight.traces.raw_event import NO_ARGS, NO_TIME, NOTHING, RawArgs, RawEvent

_NO_NUMBER: Final = re.compile(r"([:\[,]\s*)-?(?:nan|inf)(?:inity)?\b", re.IGNORECASE)
_NO_ESCAPE: Final = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_LIMITS: Final = (-(2**63), 2**63)
_KINDS: Final = get_type_hints(RawArgs)
_NAMES: Final = {each.encode_name: each.name for each in msgspec.structs.fields(RawArgs)}


def odd_event(text: bytes) -> RawEvent | None:
    """The event of an object's JSON, None if it is none. Fields of types that make no sense count as missing, as do
    numbers that no column holds.
    """
    found = _object(text.decode(errors="replace"))
    if not isinstance(found, dict):
        return None
    return RawEvent(
        ph=_text(found.get("ph")),
        cat=found["cat"] if isinstance(found.get("cat"), str) else None,
        name=_text(found.get("name")),
        pid=_thread(found.get("pid")),
        tid=_thread(found.get("tid")),
        ts=_time(found.get("ts")),
        dur=_time(found.get("dur")),
        args=_args(found.get("args")),
    )


def _object(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    try:  # as Kineto's own faults have it
        return json.loads(_NO_NUMBER.sub(r"\1null", _NO_ESCAPE.sub(r"\\\\", text)), strict=False)
    except (ValueError, RecursionError):
        return None


def _args(found: Any) -> RawArgs:
    if not isinstance(found, Mapping):
        return NO_ARGS
    known: dict[str, Any] = {}
    for key, value in found.items():
        name = _NAMES.get(key)
        if name is None or value is None:
            continue
        if _KINDS[name] is msgspec.Raw:
            known[name] = _json(value)
        elif _KINDS[name] is str or _KINDS[name] is Any:
            known[name] = _text(value)
        else:
            known[name] = _number(value)
    return RawArgs(**known)


def _json(value: Any) -> msgspec.Raw:
    try:
        return msgspec.Raw(json.dumps(value).encode())
    except RecursionError:
        return NOTHING


def _text(value: Any) -> str:
    """A text that any file can hold: surrogates without a partner become question marks."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return "" if value is None or isinstance(value, dict | list) else str(value)


def _thread(value: Any) -> int | str:
    return value if isinstance(value, int) and _LIMITS[0] <= value < _LIMITS[1] else _text(value)


def _time(value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return NO_TIME
    return found if math.isfinite(found) and not isinstance(value, bool) else NO_TIME


def _number(value: Any) -> int | None:
    """A whole number, decimal or hexadecimal text too. One above 2^63 is a negative one that was written unsigned."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = int(value, 0 if value[:2].lower() == "0x" else 10)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        return None
    if _LIMITS[1] <= value < 2**64:
        value -= 2**64
    return value if _LIMITS[0] <= value < _LIMITS[1] else None
