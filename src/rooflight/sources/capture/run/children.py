"""Children of a script's process: those that multiprocessing spawns and torchrun launches are watched from their start.

Each leaves a part of the run in a folder if it trained. Where the children step and their parent does not, their steps
are the run's.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rooflight.records.timeline import StepKind

if TYPE_CHECKING:
    from rooflight.records.session import Session
    from rooflight.sources.capture.run.sampler import Sampler

ELASTIC: Final = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
"""The module by which torchrun starts its workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is watched: ``skip`` steps are for warming up, ``steps`` after them are timed, or all. ``only`` is the kind
    of step that the user chose, ``named`` its module or function. ``folder`` is where children put their parts.
    """

    script: str
    folder: str
    skip: int = 2
    steps: int | None = None
    only: StepKind | None = None
    named: str = ""

    @property
    def ended(self) -> bool:
        """Whether the parent has ended, and reads no part any more."""
        return (Path(self.folder) / "ended").exists()

    def end(self) -> None:
        """Let children see that it has."""
        Path(self.folder).mkdir(exist_ok=True)
        (Path(self.folder) / "ended").touch()


def _begins(function: str, watched: Watched) -> str:
    """Python that watches the process that runs it."""
    facts = {**asdict(watched), "only": str(watched.only or "")}
    return f"from rooflight.sources.capture.run.watch import {function}; {function}({facts!r}); "


def follow_spawned(watched: Watched) -> None:
    """Children that multiprocessing spawns run a line of Python, which begins by watching them."""
    from multiprocessing import spawn

    command, first = spawn.get_command_line, _begins("spawned", watched)

    def with_watching(*args: Any, **kwargs: Any) -> list[str]:
        words = list(command(*args, **kwargs))
        if "-c" in words:
            place = words.index("-c") + 1
            words[place] = first + words[place]
        return words

    spawn.get_command_line = with_watching


def follow_launched(watched: Watched) -> None:
    """Workers of torchrun that run Python are started by a line that watches them."""
    handler = sys.modules[ELASTIC].SubprocessHandler
    popen, line = handler._popen, _begins("launched", watched)

    def with_watching(self: Any, args: tuple[str, ...], env: dict[str, str]) -> Any:
        words = list(args)
        script = next((place for place, word in enumerate(words[1:], 1) if word == "-m" or word[:1] != "-"), 0)
        if words[0] == sys.executable and script:
            kind = [] if words[script] == "-m" else ["file"]
            words[script:] = ["-c", line, *kind, *words[script:]]
        return popen(self, tuple(words), env)

    handler._popen = with_watching


def write_part(finder: Any, watched: Watched, exit_code: int | None, sampler: Sampler | None) -> None:
    """Leave what the ``StepFinder`` of a child found for its parent, if it trained."""
    if finder is None or not finder.has_trained:
        return
    from rooflight.sources.capture.run.outcome import session_of

    with suppress(Exception):  # the child's own work is done, and the parent says what it missed
        folder = Path(watched.folder)
        folder.mkdir(parents=True, exist_ok=True)
        session = session_of(finder, watched.script, exit_code, watched.steps, sampler=sampler, folder=folder)
        session.save(folder / f"part-{os.getpid()}.session")


def with_parts(session: Session, folder: Path) -> list[Session]:
    """The session of the process that stepped most often, if children trained and their parent did not; the steps are
    those of all children. Of several ranks that step together the sessions of all, the first rank's first. Otherwise
    the parent's own.
    """
    from rooflight.records.archive import load

    run = session.run
    assert run is not None
    own = run.step is not None and run.step.kind is not StepKind.MODULE
    parts = [] if own else [load(path) for path in sorted(folder.glob("part-*.session"))]
    found = [(part, part.run, part.run.step) for part in parts if part.run is not None and part.run.step is not None]
    if not found:
        return [session]
    by_rank = {part.environment.get("rank", ""): part for part, _, _ in sorted(found, key=lambda each: each[2].count)}
    most, its_run, step = max(found, key=lambda each: (each[0].environment.get("rank") == "0", each[2].count))
    ranks = int(most.environment.get("world_size", "1"))
    count = step.count if ranks > 1 else sum(each.count for _, _, each in found)
    who = f"in each of {ranks} ranks" if ranks > 1 else f"in {len(found)} child process{'es' * (len(found) > 1)}"
    whole = replace(its_run, script=run.script, exit_code=run.exit_code,
                    step=replace(step, processes=who, count=count))  # fmt: skip
    others = [part for part in by_rank.values() if ranks > 1 and part is not most]
    return [replace(most, run=whole), *sorted(others, key=lambda part: int(part.environment["rank"]))]
