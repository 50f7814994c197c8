"""The events of a trace file, read in pieces, damaged or odd ones too.

A trace of a real run has up to some gigabytes of JSON, most of it one list, ``traceEvents``. The text is cut after any
``}`` that a comma follows; if what lies before a cut is a complete list of events, so that it decodes, the cut lies
between two events and not in one or in a string. If it is not complete, the next cut is tried. Where the text before a
cut is no JSON, it is taken apart event by event, so that a damaged event costs this event alone.

Odd events are not as torch's profiler writes them: they are read field by field, and what cannot be read is left out.
Some are of versions with faults (an id above 2^63, ``nan`` for a number, a path of Windows with single backslashes, a
name that is no UTF-8), some of files that other programs wrote or changed.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, Final, cast, get_type_hints

import msgspec

from rooflight.sources.traces.file.kinds import ASK, GZIP, foreign

NOTHING = msgspec.Raw(b"")
NO_TIME = float("nan")

Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None
"""What fits a column."""


class RawArgs(msgspec.Struct, frozen=True, gc=False):
    """Arguments of an event. Fields that no event has stay empty; unknown ones are skipped."""

    external_id: Number = msgspec.field(default=None, name="External id")
    old_external_id: Number = msgspec.field(default=None, name="external id")
    correlation: Number = None
    kernel: Any = None  # ROCm's calls have the name of the kernel that they launch
    device: Number = None
    stream: Number = None
    record_function: Number = msgspec.field(default=None, name="Record function id")
    sequence_number: Number = msgspec.field(default=None, name="Sequence number")
    forward_thread: Number = msgspec.field(default=None, name="Fwd thread id")
    size: Number = msgspec.field(default=None, name="bytes")
    dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    old_dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input dims")  # of early 2021, without types
    types: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Strides")
    values: msgspec.Raw = msgspec.field(default=NOTHING, name="Concrete Inputs")
    collective: str = msgspec.field(default="", name="Collective name")
    group: str = msgspec.field(default="", name="Process Group Name")
    group_size: Number = msgspec.field(default=None, name="Group size")
    group_ranks: str = msgspec.field(default="", name="Process Group Ranks")
    dtype: str = ""
    task: Any = msgspec.field(default=None, name="Task Type")  # of Ascend
    connection: Number = msgspec.field(default=None, name="connection_id")
    task_stream: Number = msgspec.field(default=None, name="Physic Stream Id")
    begin_ns: Number = msgspec.field(default=None, name="BeginNs")  # of rocprof
    rocm_device: Number = msgspec.field(default=None, name="dev-id")
    rocm_queue: Number = msgspec.field(default=None, name="queue-id")
    in_elements: Number = msgspec.field(default=None, name="In msg nelems")
    out_elements: Number = msgspec.field(default=None, name="Out msg nelems")


NO_ARGS = RawArgs()


class RawEvent(msgspec.Struct, gc=False):
    """One event: times in microseconds, ``NO_TIME`` where there is none. ``ph`` is Chrome's phase: "X" has a duration,
    "M" names a thread.
    """

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = NO_TIME
    dur: float = NO_TIME
    args: RawArgs = NO_ARGS


_NO_NUMBER: Final = re.compile(r"([:\[,]\s*)-?(?:nan|inf)(?:inity)?\b", re.IGNORECASE)
_NO_ESCAPE: Final = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_LIMITS: Final = (-(2**63), 2**63)
_NAMES: Final = {each.encode_name: each.name for each in msgspec.structs.fields(RawArgs)}


def odd_event(text: bytes) -> RawEvent | None:
    """The event of an object's JSON, None if it is none. Fields of types that make no sense count as missing, as do
    numbers that no column holds.
    """
    found = _object(text.decode(errors="replace"))
    if not isinstance(found, dict):
        return None
    args = found["args"] if isinstance(found.get("args"), dict) else {}
    known = {_NAMES[key]: value for key, value in args.items() if key in _NAMES and value is not None}
    return RawEvent(
        ph=_text(found.get("ph")),
        cat=found["cat"] if isinstance(found.get("cat"), str) else None,
        name=_text(found.get("name")),
        pid=_thread(found.get("pid")),
        tid=_thread(found.get("tid")),
        ts=_time(found.get("ts")),
        dur=_time(found.get("dur")),
        args=RawArgs(**{name: _ARGS[name](value) for name, value in known.items()}),
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


_BY_TYPE: Final[Mapping[Any, Callable[[Any], Any]]] = {msgspec.Raw: _json, str: _text, Any: _text}
_ARGS: Final[Mapping[str, Callable[[Any], Any]]] = {
    name: _BY_TYPE.get(type_, _number) for name, type_ in get_type_hints(RawArgs).items()
}


_CHUNK: Final = 16 << 20
_PEEK: Final = 1 << 18
_HEAD: Final = 64 << 20  # a head longer than this is that of no trace
_LONGEST: Final = 4  # so many pieces without a cut are no event, but damaged
_TAIL: Final = 1 << 16  # cuts are looked for in so many bytes at the end of a piece,
_TRIES: Final = 32  # and so many of them are tried before more is read
_JOINED: Final = 8  # an event may have so many places that look like its end
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*(\S)')
_CUT: Final = re.compile(rb"\}\s*,")
_BETWEEN: Final = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_END: Final = re.compile(rb"\}\s*,?\s*\]")
_KEYS: Final = re.compile(rb'\s*(?:\}|$|,\s*")')
_ENDED: Final = "Input data was truncated"
_AT_BYTE: Final = re.compile(r"\(byte (\d+)\)$")
_BOM: Final = b"\xef\xbb\xbf"
_as_events: Final = msgspec.json.Decoder(list[RawEvent], strict=False)
_as_texts: Final = msgspec.json.Decoder(list[msgspec.Raw])
_as_event: Final = msgspec.json.Decoder(RawEvent, strict=False)  # a number may be text: ROCm's bytes
_as_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _NoJsonError(Exception):
    """What lies before a cut is no JSON, wherever it is cut."""


class TraceChunks:
    """Reads the trace at ``path``, plain or gzip. After the events were iterated, ``head`` has the other keys.

    ``odd`` counts events whose fields are not all of the profiler's types and which were read field by field,
    ``damaged`` those that could not be read and were left out. ``progress`` is called with the bytes read of the file
    and its size. Raises ValueError, naming the file, for what is no trace, and OSError.
    """

    def __init__(self, path: Path, progress: Callable[[int, int], None] | None = None) -> None:
        self.path = path
        self.head: dict[str, Any] = {}
        self.odd = 0
        self.damaged = 0
        self._events = 0
        self._progress = progress

    def __iter__(self) -> Iterator[list[RawEvent]]:
        with self._opened() as (file, text):
            size = self.path.stat().st_size
            for events in self._lists(text):
                self._events += len(events)
                if self._progress is not None:
                    self._progress(file.tell(), size)
                yield events

    def read_head(self) -> dict[str, Any]:
        """The keys before the events alone. Raises as iterating does."""
        with self._opened() as (_, text):
            self._after_head(text, _PEEK)
        return self.head

    @contextmanager
    def _opened(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        with self.path.open("rb") as file:
            if why := foreign(self.path):
                raise ValueError(why)
            packed = file.read(len(GZIP)) == GZIP
            file.seek(0)
            text = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
            try:
                yield file, text
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(f"{self.path}: the gzip file is damaged or ends too early ({error})") from error

    def _lists(self, text: IO[bytes]) -> Iterator[list[RawEvent]]:
        rest = self._after_head(text)
        searched = 0  # cuts before this were tried, and are none
        while piece := text.read(_CHUNK):
            rest += piece
            try:
                for cut in reversed(list(_CUT.finditer(rest, max(searched, len(rest) - _TAIL)))[-_TRIES:]):
                    events = self._decoded(b"[" + rest[: cut.start() + 1] + b"]")
                    if events is not None:
                        yield events
                        rest, searched = rest[cut.end() :], 0
                        break
                else:
                    searched = max(0, len(rest) - 1)
                    if len(rest) > _LONGEST * max(_CHUNK, _TAIL):
                        raise _NoJsonError
            except _NoJsonError:
                events, rest = self._salvaged(rest)
                yield events
                searched = 0
        yield self._last(rest)

    def _after_head(self, text: IO[bytes], size: int = 0) -> bytes:
        found = b""
        while piece := text.read(size or _CHUNK):
            found = (found + piece).removeprefix(_BOM)
            if found.lstrip()[:1] == b"[":  # a bare list of events, as Chrome's own traces may be
                return found.lstrip()[1:]
            if match := _EVENTS.search(found):
                if match[1] != b"[":
                    raise ValueError(f'{self.path}: its "traceEvents" is no list: {ASK}')
                self._keep(found[: match.start()].rstrip().rstrip(b",") + b"}")
                return found[match.end() :]
            if len(found) > _HEAD:
                break
        if not found.strip():
            raise ValueError(f"{self.path} is empty: {ASK}")
        try:
            _as_object.decode(found)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path} is not a JSON object: {ASK}") from error
        raise ValueError(f'{self.path} is JSON without "traceEvents": {ASK}')

    def _last(self, rest: bytes) -> list[RawEvent]:
        try:
            events, tail = self._ended(rest)
        except _NoJsonError:
            events, left = self._salvaged(rest)
            end = _end_of_list(left)
            if end is None:
                raise self._cut_short(len(events)) from None
            if (event := self._event(left[: end.start() + 1])) is not None:
                events.append(event)
            tail = left[end.end() :]
        if (tail := tail.strip()).strip(b"}").strip():
            if _EVENTS.search(tail):
                raise ValueError(f"{self.path} has more than one trace, one after the other: give one of them")
            self._keep(b"{" + tail.lstrip(b","))
        return events

    def _ended(self, rest: bytes) -> tuple[list[RawEvent], bytes]:
        text = b"[" + rest
        end = len(text)
        try:
            _as_texts.decode(text)
        except (ValueError, RecursionError) as error:
            found = _AT_BYTE.search(str(error))
            if "trailing characters" not in str(error) or found is None:
                if str(error) == _ENDED:
                    raise self._cut_short(len(self._salvaged(rest)[0])) from error
                raise _NoJsonError from error
            end = int(found[1]) - 1  # it counts the first of these characters too
        events = self._decoded(text[:end])
        assert events is not None
        return events, text[end:]

    def _cut_short(self, more: int) -> ValueError:
        return ValueError(
            f"{self.path} ends in the middle of an event, after {self._events + more:,} whole ones: it was not "
            "written, or not copied, to its end"
        )

    def _keep(self, keys: bytes) -> None:
        try:
            self.head |= msgspec.json.decode(keys, type=dict[str, Any])
        except RecursionError as error:
            raise ValueError(f"{self.path}: what it says of itself is nested too deeply") from error
        except ValueError as error:
            raise ValueError(f"{self.path} is not JSON: {error}") from error

    def _decoded(self, text: bytes) -> list[RawEvent] | None:
        try:
            return _as_events.decode(text)
        except msgspec.ValidationError:
            pass  # an event in it is none of the profiler's; whether what follows is a list is not known yet
        except (ValueError, RecursionError) as error:
            _check_cut(error, text)
            return None
        try:
            texts = _as_texts.decode(text)
        except (ValueError, RecursionError) as error:
            _check_cut(error, text)
            return None
        return [event for each in texts if (event := self._event(bytes(each))) is not None]

    def _event(self, text: bytes) -> RawEvent | None:
        try:
            return _as_event.decode(text)
        except (ValueError, RecursionError):
            found = odd_event(text)
        if found is None:
            self.damaged += 1
        else:
            self.odd += 1
        return found

    def _salvaged(self, text: bytes) -> tuple[list[RawEvent], bytes]:
        parts = _BETWEEN.split(text)
        events, at = [], 0
        while at < len(parts) - 1:
            for ends in range(at + 1, min(at + 1 + _JOINED, len(parts))):
                whole = b",".join(parts[at:ends]).strip()
                if whole.endswith(b"}") and _is_object(whole):
                    break
            else:
                ends = at + 1
            event = self._event(b",".join(parts[at:ends]))
            if event is not None:
                events.append(event)
            at = ends
        return events, parts[-1]


def _check_cut(error: Exception, text: bytes) -> None:
    if isinstance(error, UnicodeDecodeError | RecursionError):
        raise _NoJsonError from error
    at = _AT_BYTE.search(str(error))
    if at is not None and int(at[1]) < len(text) - 1:
        raise _NoJsonError from error


def _end_of_list(text: bytes) -> re.Match[bytes] | None:
    """Where the list ends, in a text with its last event; of a damaged event the last place that keys may follow."""
    ends = list(_END.finditer(text))
    whole = next((end for end in ends if _is_object(text[: end.start() + 1])), None)
    return whole or next((end for end in reversed(ends) if _KEYS.match(text, end.end())), None)


def _is_object(text: bytes) -> bool:
    try:
        _as_object.decode(text)
    except (ValueError, RecursionError):
        return False
    return True
