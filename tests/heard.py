"""What the step finder heard of scripts: events by hand, events that were recorded, and a recorder of nothing."""

from __future__ import annotations

import gzip
import json
import os
import runpy
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rooflight.records.account import Place
from rooflight.records.timeline import StepKind
from rooflight.sources.capture.run import events
from rooflight.sources.capture.run.events import Ear, Event, Weights, Writes
from rooflight.sources.capture.run.recording import Recorder

HEARD = Path(__file__).parent / "scripts" / "heard.jsonl.gz"
MOST = 4000
"""Events of a script that are kept."""


class Notebook(Recorder):
    """Records nothing, but knows which steps were to be recorded: ``begun``."""

    def __init__(self, skip: int = 2) -> None:
        super().__init__(skip)
        self.begun: list[tuple[StepKind, int]] = []

    def begin(self, kind: StepKind, place: int, cycle: int = 1, module: Any = None, args: Any = ()) -> None:
        """As a recorder does, and note which."""
        self.begun.append((kind, place))
        super().begin(kind, place, cycle)

    def _made(self) -> Any:
        return _Nothing()

    def _follow(self, recording: Any, session: Any) -> None:
        """Nothing is left behind."""


class _Nothing:
    """A recording that has one op."""

    calls = 1
    environment: dict[str, str] = {}  # noqa: RUF012

    def __enter__(self) -> None:
        """It begins."""

    def __exit__(self, *_: object) -> None:
        """It ends."""

    def __len__(self) -> int:
        return 1

    def so_far(self) -> Any:
        """The session."""
        return self

    def abandon(self) -> None:
        """It ends."""


class Answers(Ear):
    """An ear that answers what was answered when the events were heard."""

    def __init__(self, answers: Iterable[tuple[int, bool, bool]] = ()) -> None:
        self.writes = Answered(answers)


class Answered(Writes):
    """What was written, as it was answered then."""

    def __init__(self, answers: Iterable[tuple[int, bool, bool]]) -> None:
        super().__init__()
        self._answers = iter(answers)

    def follow(self, model: Any) -> None:
        """It is not there."""

    def since_backward(self) -> int:
        """The next answer."""
        found, self.accumulates, self.began_to_accumulate = next(self._answers, (0, False, False))
        return found


def recorded() -> Iterator[tuple[str, bool, list[Event], list[tuple[int, bool, bool]]]]:
    """Scripts: their name, whether all was kept, what was heard, and what was answered."""
    with gzip.open(HEARD, "rt") as file:
        for line in file:
            name, whole, heard, answers = json.loads(line)
            yield name, whole, [_read(each) for each in heard], [tuple(each) for each in answers]


def _read(words: list[Any]) -> Event:
    kind = getattr(events, words[0])
    given = dict(zip(kind._fields, words[1:], strict=False))
    if given.get("where"):
        given["where"] = Place(**dict(zip(("file", "line", "function"), given["where"], strict=True)))
    elif "where" in given:
        del given["where"]
    if "weights" in given:
        given["weights"] = Weights(*given["weights"])
    return kind(**given)


def hear(into: str, script: str, *arguments: str) -> None:
    """Run a script as ``python`` does, and write down what a finder hears."""
    from rooflight.sources.capture.run.hooks import install, when_imported

    heard: list[list[Any]] = []
    answers: list[list[Any]] = []
    count = 0

    def listen() -> None:
        from rooflight.sources.capture.run.listening import Listening

        class Taping(Listening):
            def hasten(self, model: Any, optimizer: Any) -> None:
                """Go on hearing all."""

        class TapingWrites(Writes):
            def since_backward(self) -> int:
                found = super().since_backward()
                answers.append([found, self.accumulates, self.began_to_accumulate])
                return found

        ear = Taping(skip=2)
        ear.writes = TapingWrites()
        ear.finder.recorder = Notebook()
        fold = ear.finder.fold

        def taped(event: Event) -> int:
            nonlocal count
            count += 1
            if count <= MOST:
                skipped = {"module": None, "args": None, "optimizer": None}
                given = {**event._asdict(), **{name: value for name, value in skipped.items() if name in event._fields}}
                if "where" in given:
                    where = given["where"]
                    given["where"] = [where.file, where.line, where.function] if where.line else None
                words = list(given.values())
                while words and words[-1] is None:
                    words.pop()
                heard.append([type(event).__name__, *words])
            return fold(event)

        ear.finder.fold = taped
        install(ear)

    when_imported("torch", listen)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        written = Path(f"{into}.{os.getpid()}")  # of children, and threads that go on, none is read half
        written.write_text(json.dumps([script, count <= MOST, heard, answers]))
        written.replace(into)


if __name__ == "__main__":
    hear(*sys.argv[1:])
