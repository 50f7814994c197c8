"""What compiling a kind of call is expected to bring: what an earlier run of the program measured, or a prediction."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from torch import nn

from rooflight.compiling.call_kinds import Kind
from rooflight.compiling.hot_entry import Entry
from rooflight.compiling.hot_gain import ExpectedGain, expected_gain
from rooflight.compiling.hot_memory import Remembered, key_of, recall, remember
from rooflight.compiling.hot_options import HotOptions
from rooflight.compiling.hot_plan import alike
from rooflight.compiling.hot_seen import CallKind
from rooflight.compiling.patterns import pattern_of
from rooflight.records.session import Session


def outlook(
    key: Kind,
    kind: CallKind,
    entry: Entry,
    session: Session,
    options: HotOptions,
    *,
    open_ended: bool,
    left: float | None,
) -> ExpectedGain | None:
    """The gain and cost of compiling a kind, of which ``session`` has a call. None, with the kind left eager, where an
    earlier run compiled it for nothing. ``open_ended``: runs are timed until the next call; ``left`` are to come.

    A module with blocks that are alike has these compiled, one for all, unless the whole takes less in all: more time
    to compile, and less in the runs that are left, where that is known.
    """
    kind.pattern = pattern_of(session)
    if options.remember:
        name = options.backend if isinstance(options.backend, str) else _name(options.backend)
        how = f"{name} {options.mode} {options.dynamic} {options.beside}"  # of which the cost depends
        kind.key = key_of(entry.eager, key, kind.pattern, one_size=len(kind.sizes) == 1, how=how)
        found = recall(kind.key)
        if found is not None and found.outcome == "eager":
            kind.state, kind.reason = "eager", f"an earlier run found: {found.reason}"
            return None
        if found is not None and found.speedup and found.compile_s:
            return ExpectedGain(
                speedup=found.speedup, compile_s=found.compile_s, source="an earlier run", blocks=found.blocks
            )
    backward = open_ended and not kind.backward
    whole = expected_gain(session, kind.eager_s, mode=options.mode, backward=backward)
    parts = alike(entry.module) if entry.module is not None else []
    if entry.module is None or not parts:
        return whole
    blocks = whole.of_blocks(len(parts), _share(session, entry.module, parts))
    if left is None:
        return blocks
    eager_s = statistics.median(kind.eager_s)
    return min(blocks, whole, key=lambda way: way.total_s(eager_s, left))


def _share(session: Session, module: nn.Module, blocks: Sequence[nn.Module]) -> float:
    """Of the operations of a module's call, those in some of the modules in it."""
    wanted = set(map(id, blocks))
    places = tuple(f"{name}." for name, each in module.named_modules() if id(each) in wanted)
    inside = np.array([f"{entry.path}.".startswith(places) for entry in session.modules])
    found = inside[session.columns.module[session.counted]]
    return float(found.mean()) if len(found) else 1.0


def remember_outcome(kind: CallKind) -> None:
    """Keep the end of a trial for the program's next run."""
    if kind.key and kind.decided:
        outcome: Literal["compiled", "eager"] = "compiled" if kind.state == "compiled" else "eager"
        found = Remembered(
            outcome=outcome,
            reason=kind.reason,
            speedup=kind.speedup,
            compile_s=kind.compile_s,
            blocks=kind.expected is not None and kind.expected.blocks,
        )
        remember(kind.key, found)


def _name(backend: Any) -> str:
    return str(getattr(backend, "__qualname__", type(backend).__qualname__))
