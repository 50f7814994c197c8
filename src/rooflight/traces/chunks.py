"""A trace file in pieces: what it says of itself, and lists of events, never the whole file in memory.

A trace of a real run has up to some gigabytes of JSON, most of it one list, ``traceEvents``. The text is cut after any
``}`` that a comma follows; if what lies before a cut is a complete list of events, so that it decodes, the cut lies
between two events and not in one or in a string. If it is not complete, the next cut is tried. Where the text before a
cut is no JSON, it is taken apart event by event, so that a damaged event costs this event alone.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from rooflight.traces.odd_events import odd_event
from rooflight.traces.raw_event import RawEvent

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
_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
_PACKED: Final = {
    b"PK\x03\x04": ("a zip archive", "unzip"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "zstd -d"),
    b"\xfd7zXZ": ("compressed by xz", "xz -d"),
    b"BZh": ("compressed by bzip2", "bzip2 -d"),
    b"7z\xbc\xaf": ("a 7z archive", "7z x"),
    b"SQLite format 3": ("an SQLite database", ""),
}
_ASK: Final = "give a trace that torch.profiler exported"

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
        """The file, and its text, unpacked. What is damaged inside raises ValueError."""
        with self.path.open("rb") as file:
            begin = file.read(16)
            file.seek(0)
            for magic, (what, how) in _PACKED.items():
                if begin.startswith(magic):
                    unpack = f"unpack it first ({how})" if how else _ASK
                    raise ValueError(f"{self.path} is {what}, not JSON or gzip: {unpack}")
            text = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if begin.startswith(_GZIP) else file
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
        """What follows the begin of the list of events, read in pieces of this size. Keeps the keys before it."""
        found = b""
        while piece := text.read(size or _CHUNK):
            found = (found + piece).removeprefix(_BOM)
            if found.lstrip()[:1] == b"[":  # a bare list of events, as Chrome's own traces may be
                return found.lstrip()[1:]
            if match := _EVENTS.search(found):
                if match[1] != b"[":
                    raise ValueError(f'{self.path}: its "traceEvents" is no list: {_ASK}')
                self._keep(found[: match.start()].rstrip().rstrip(b",") + b"}")
                return found[match.end() :]
            if len(found) > _HEAD:
                break
        if not found.strip():
            raise ValueError(f"{self.path} is empty: {_ASK}")
        try:
            _as_object.decode(found)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path} is not a JSON object: {_ASK}") from error
        raise ValueError(f'{self.path} is JSON without "traceEvents": {_ASK}')

    def _last(self, rest: bytes) -> list[RawEvent]:
        """The last events, and the keys after them."""
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
            self._keep(b"{" + tail.lstrip(b","))
        return events

    def _ended(self, rest: bytes) -> tuple[list[RawEvent], bytes]:
        """The events of a list that ends somewhere in a text, and what follows it. Raises _NoJsonError for no JSON."""
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
        """The events of a list, None if the text was cut in the middle of one. Raises _NoJsonError if it is no JSON."""
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
        """The event of a text, None and counted as damaged if it is none."""
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
        """The events of a text in which not all is JSON, and the text after the last place that can be their end."""
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
    """Raise _NoJsonError unless decoding stopped at the bracket that was put after a cut, or in a string cut there."""
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
