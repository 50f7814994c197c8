"""Parts of a run: what children of a script's process found, where they step and it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rooflight.records.archive import load
from rooflight.records.run import Run, StepKind
from rooflight.records.session import Session


def with_parts(session: Session, folder: Path) -> Session:
    """The session of the process that stepped most often, if children trained and their parent did not, with the steps
    of all in sum; otherwise the parent's own.
    """
    run = session.run
    assert run is not None
    own = run.step is not None and run.step.kind is not StepKind.MODULE
    if own or not folder.is_dir():
        return session
    parts = [load(path) for path in sorted(folder.glob("part-*.session"))]
    steps = [(part, part.run, part.run.step) for part in parts if part.run is not None and part.run.step is not None]
    if not steps:
        return session
    most, its_run, step = max(steps, key=lambda each: each[2].count)
    total = sum(each.count for _, _, each in steps)
    where = f"{step.where} in each of {len(steps)} child processes" if len(steps) > 1 else f"{step.where} in a child"
    whole: Run = replace(
        its_run, script=run.script, exit_code=run.exit_code, step=replace(step, where=where, count=total)
    )
    return replace(most, run=whole)
