"""Own lines: what the program's own Python waits for or computes, between ops and before steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rooflight.diagnosis.draft import Draft, Facts, Remedy
from rooflight.diagnosis.evidence import Evidence
from rooflight.records.account import Cause, Place, hottest
from rooflight.records.quantity import Quantity
from rooflight.records.timeline import HostLine, Within
from rooflight.roofline.account.times import WAITS

ASLEEP: Final = Remedy(
    id="asleep",
    title="the host sleeps or waits",
    short="no sleep or lock in the loop",
    rest="read ahead, or wait in another thread",
)
HOST: Final = Remedy(
    id="host-code",
    title="the program's own lines",
    short="do it once, outside the loop",
    rest="vectorized, by tensor ops on all at once; in another process or thread; or every N steps, and only where "
    "somebody reads it",
)
_TEXT: Final[Mapping[str, Any]] = {
    "title": "the program makes text of numbers",
    "short": "every N steps, and only if it is read",
    "rest": "under isEnabledFor, or lazily by the logger: log.debug('%s', x)",
}
_FILES: Final[Mapping[str, Any]] = {
    "title": "the program reads or writes files",
    "short": "less often, and in binary (np.save)",
    "rest": "read once and kept; written in another thread",
}
_COPYING: Final[Mapping[str, Any]] = {
    "title": "objects are copied",
    "short": "copy once, no deepcopy in the loop",
    "rest": "or update in place, the tensors alone (copy_, torch._foreach_copy_)",
}
_COLLECTING: Final[Mapping[str, Any]] = {
    "title": "memory is collected by hand",
    "short": "no gc.collect() in the loop",
    "rest": "nor empty_cache(): Python and torch free what nobody holds",
}
_GROWING: Final[Mapping[str, Any]] = {
    "title": "tensors are joined into new ones",
    "short": "preallocate, and write in place",
    "rest": "a ring buffer, or a list that is joined once at its end: to join copies all there is",
}
_CONVERTING: Final[Mapping[str, Any]] = {
    "title": "lists of numbers are made into tensors, or tensors into lists",
    "short": "one array for all: np.stack, from_numpy",
    "rest": "torch.tensor() goes through a list number by number; a tensor that is kept, or tensor ops, need no list",
}
_PREPARING: Final[Mapping[str, Any]] = {
    "title": "the main process prepares batches",
    "short": "in the loader's workers, by its collate_fn",
    "rest": "a batch ahead: DataLoader(num_workers=N, collate_fn=...); or once, and kept",
}
_OF_CALLS: Final = (
    (re.compile(r"^gc\.collect|empty_cache|malloc_trim"), _COLLECTING),
    (re.compile(r"deepcopy"), _COPYING),
    (re.compile(r"(^|\.)(tensor|as_tensor|FloatTensor|LongTensor|tolist)$"), _CONVERTING),
    (re.compile(r"(^|\.)(print|debug|info|warning|format|dumps|repr|str|f-string)$"), _TEXT),
    (re.compile(r"(^|\.)(\w*collate\w*|pad_sequence|transforms?|augment\w*)$"), _PREPARING),
    (re.compile(r"(^|\.)(cat|stack|vstack|hstack|concat|concatenate)$"), _GROWING),
    (re.compile(r"(^|\.)(open|write|writelines|flush|fsync|save\w*|dump|to_csv|read\w*|loadtxt|load)$"), _FILES),
)
"""What a line calls, as it is written there, and what helps against that."""
_OF_BATCHES: Final = re.compile(r"collate|augment", re.IGNORECASE)
_WITHIN: Final = {Within.TEXT: _TEXT, Within.FILES: _FILES, Within.COPYING: _COPYING}
_ASLEEP: Final = 0.7


def at_line(line: HostLine | None) -> str:
    """A line in words; that of no line of the program is a library's."""
    return str(line.where) if line is not None and line.where else "a library"


def remedy_of(line: HostLine | None) -> Remedy:
    """What helps against a line in which Python runs, by what it calls."""
    calls = line.where.calls if line is not None and line.where else ""
    words = _WITHIN.get(line.within) if line is not None else None
    words = words or next((each for pattern, each in _OF_CALLS if pattern.search(calls)), {})
    if line is not None and line.where and words in ({}, _GROWING):  # joined once, where a batch is made
        words = _PREPARING if _OF_BATCHES.search(line.where.function) else words
    return replace(HOST, **words)


def own_lines(facts: Facts) -> Iterable[Draft]:
    """What the program's own lines wait for, or compute in Python, between ops and before steps."""
    of = facts.of
    slept_s, busy_s, line = _between_ops(of) if of.on_cpu and of.measured else (0.0, 0.0, None)
    before = of.before
    sleeping = [(slept_s, line), *((each.asleep_s, each) for each in before)]
    named = of.own_lines if busy_s else ()
    sampled_s = sum(each.seconds for each in named)
    busy = [(busy_s * each.seconds / sampled_s, each) for each in named]
    busy += [(each.seconds - each.asleep_s, each) for each in before if each.where and each.within.is_own]
    # of ops that were not recorded some calls are known to be waste
    known = [(each.seconds, each) for each in before if not each.within.is_own and remedy_of(each).short != HOST.short]
    for cause, lines, share, what in (
        (Cause.ASLEEP, sleeping, 1.0, "asleep, most of it in"),
        (Cause.PYTHON, busy, 0.9, "in which Python runs: mostly"),
        (Cause.NO_OP, known, 0.9, "in ops that were not recorded: mostly"),
    ):
        lost_s = sum(seconds for seconds, _ in lines)
        longest = hottest_line(lines)
        remedy = ASLEEP if cause is Cause.ASLEEP else remedy_of(longest)
        where = " between ops" if before == () and remedy is not ASLEEP else ""
        text = f"{Quantity(lost_s, 's')} {of.each}{where} {what} {at_line(longest)}"
        place = longest.where if longest is not None else None
        low = 0.6 if remedy is ASLEEP else 0.5
        yield from facts.waiting(remedy, (cause,), lost_s, share * lost_s, text, low, place)


def hottest_line(lines: Sequence[tuple[float, HostLine | None]]) -> HostLine | None:
    """The longest line of the function in which most of such seconds are."""
    seconds: dict[Place, float] = {}
    by_place: dict[Place, HostLine] = {}
    for its_s, line in lines:
        if line is not None and line.where is not None and its_s > 0:
            seconds[line.where] = seconds.get(line.where, 0.0) + its_s
            by_place.setdefault(line.where, line)
    first = next(iter(hottest(seconds, 1)), None)
    return by_place[first] if first is not None else max(lines, key=lambda each: each[0], default=(0.0, None))[1]


def _between_ops(of: Evidence) -> tuple[float, float, HostLine | None]:
    """Seconds between ops asleep, or in which Python runs, and the line where most of them were."""
    known_s = of.in_library(*WAITS)[0]
    own = [line for line in of.lines if line.within not in WAITS]
    # to be sampled takes a thread a little time, too: a line that sleeps does hardly anything else
    ran = 1 - of.held_up_s / of.step_s  # the share of time that other programs left
    sleeping = [line for line in own if line.asleep_s > _ASLEEP * ran * line.seconds]
    all_asleep_s = sum(line.asleep_s for line in own)
    slept_s = of.asleep_s * sum(line.asleep_s for line in sleeping) / all_asleep_s if all_asleep_s else 0.0
    if slept_s > 0.5 * max(0.0, of.long_gaps_s - known_s):
        return slept_s, 0.0, max(sleeping, key=lambda each: each.asleep_s)
    busy_s = of.gain(other_s=max(0.0, of.long_gaps_s - known_s - of.asleep_s))
    return 0.0, busy_s if of.own_lines else 0.0, None


RULES: Final = (own_lines,)
