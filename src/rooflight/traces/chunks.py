"""A trace file in pieces: what it says of itself, and lists of events, never the whole file in memory.

A trace of a real run has up to some gigabytes of JSON, most of it one list, ``traceEvents``. The text is cut after any
``}`` that a comma follows; if what lies before a cut is a complete list of events, so that it decodes, the cut lies
between two events and not in one or in a string. If it is not complete, the next cut is tried.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec

from rooflight.traces.raw_event import RawEvent

_CHUNK: Final = 16 << 20
_HEAD: Final = 64 << 20  # a head longer than this is that of no trace
_TAIL: Final = 1 << 16  # cuts are looked for in so many bytes at the end of a piece,
_TRIES: Final = 32  # and so many of them are tried before more is read
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUT: Final = re.compile(rb"\}\s*,")
_GZIP: Final = b"\x1f\x8b"

_as_events: Final = msgspec.json.Decoder(list[RawEvent], strict=False)
_as_texts: Final = msgspec.json.Decoder(list[msgspec.Raw])
_as_event: Final = msgspec.json.Decoder(RawEvent, strict=False)  # a number may be text: ROCm's bytes
_as_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class TraceChunks:
    """Reads the trace at ``path``, plain or gzip. After the events were iterated, ``head`` has the other keys.

    ``odd`` counts events that are no events of the profiler and were left out. ``progress`` is called with the bytes
    read of the file and its size. Raises ValueError, naming the file, for what is no trace, and OSError.
    """

    def __init__(self, path: Path, progress: Callable[[int, int], None] | None = None) -> None:
        self.path = path
        self.head: dict[str, Any] = {}
        self.odd = 0
        self._progress = progress

    def __iter__(self) -> Iterator[list[RawEvent]]:
        with self.path.open("rb") as file:
            size = self.path.stat().st_size
            magic = file.read(2)
            file.seek(0)
            text = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if magic == _GZIP else file
            try:
                for events in self._lists(text):
                    if self._progress is not None:
                        self._progress(file.tell(), size)
                    yield events
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(f"{self.path}: the gzip file is damaged or ends too early ({error})") from error

    def _lists(self, text: IO[bytes]) -> Iterator[list[RawEvent]]:
        rest = self._after_head(text)
        searched = 0  # cuts before this were tried, and are none
        while piece := text.read(_CHUNK):
            rest += piece
            for cut in reversed(list(_CUT.finditer(rest, max(searched, len(rest) - _TAIL)))[-_TRIES:]):
                events = self._decoded(b"[" + rest[: cut.start() + 1] + b"]")
                if events is not None:
                    yield events
                    rest, searched = rest[cut.end() :], 0
                    break
            else:
                searched = max(0, len(rest) - 1)
        yield self._last(rest)

    def _after_head(self, text: IO[bytes]) -> bytes:
        """What follows the begin of the list of events. Keeps the keys before it."""
        found = b""
        while piece := text.read(_CHUNK):
            found += piece
            if found.lstrip()[:1] == b"[":  # a bare list of events, as Chrome's own traces may be
                return found.lstrip()[1:]
            if match := _EVENTS.search(found):
                self._keep(found[: match.start()].rstrip().rstrip(b",") + b"}")
                return found[match.end() :]
            if len(found) > _HEAD:
                break
        if not found.strip():
            raise ValueError(f"{self.path} is empty: give a trace that torch.profiler exported")
        try:
            _as_object.decode(found)
        except msgspec.DecodeError as error:
            raise ValueError(f"{self.path} is not a JSON object: give a trace that torch.profiler exported") from error
        raise ValueError(f'{self.path} is JSON without "traceEvents": give a trace that torch.profiler exported')

    def _last(self, rest: bytes) -> list[RawEvent]:
        """The last events, and the keys after them."""
        end = rest.rfind(b"]")
        while end >= 0:
            tail = rest[end + 1 :].strip()
            events = self._decoded(b"[" + rest[: end + 1]) if tail[:1] in (b"", b",", b"}") else None
            if events is not None:
                if tail.strip(b"}").strip():
                    self._keep(b"{" + tail.lstrip(b","))
                return events
            end = rest.rfind(b"]", 0, end)
        raise ValueError(f"{self.path} ends in the middle of an event: it was not written, or not copied, to its end")

    def _keep(self, keys: bytes) -> None:
        try:
            self.head |= msgspec.json.decode(keys, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ValueError(f"{self.path} is not JSON: {error}") from error

    def _decoded(self, text: bytes) -> list[RawEvent] | None:
        """The events of a list, None if the text is no list."""
        try:
            return _as_events.decode(text)
        except msgspec.ValidationError:
            pass  # an event in it is none of the profiler's; whether what follows is a list is not known yet
        except msgspec.DecodeError:
            return None
        try:
            texts = _as_texts.decode(text)
        except msgspec.DecodeError:
            return None
        events = []
        for each in texts:
            try:
                events.append(_as_event.decode(each))
            except msgspec.DecodeError:
                self.odd += 1
        return events
