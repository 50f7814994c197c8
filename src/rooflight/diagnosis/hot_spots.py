"""Hot spots: where time is concentrated that no rule has a remedy for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from rooflight.diagnosis.draft import Draft, Facts
from rooflight.records.account import WORDS, Cause
from rooflight.records.session import Int64
from rooflight.roofline.findings import HotSpot
from rooflight.roofline.groups import plain_name

LEAST: Final = 0.1
"""A smaller share of an iteration is no hot spot."""
_MOST: Final = 3
_OF_OPS: Final = (Cause.SLOW_KERNELS, Cause.FUSION, Cause.UNBOUNDED, Cause.COMMUNICATION)
_READERS: Final = {
    "aten::_local_scalar_dense": "an .item()",
    "aten::item": "an .item()",
    "aten::slice": "a slice",
    "aten::select": "an index",
    "aten::index": "an index",
    "aten::masked_select": "a mask",
    "aten::where": "a mask",
}


def hot_spots(facts: Facts, drafts: Sequence[Draft]) -> tuple[HotSpot, ...]:
    """Ops, and causes in no op, that take at least a tenth of an iteration beyond what their work needs, and of which
    there is no finding; the longest first.
    """
    found = [*_ops(facts, drafts), *_causes(facts, drafts)]
    return tuple(sorted(found, key=lambda spot: -spot.seconds)[:_MOST])


def _ops(facts: Facts, drafts: Sequence[Draft]) -> Iterable[HotSpot]:
    of, account = facts.of, facts.of.analysis.account
    lost_s = np.zeros(len(of.records))
    for each in account.pieces:
        if each.cause in _OF_OPS:
            lost_s[each.call] += each.seconds
    for draft in drafts:
        lost_s[draft.calls] = 0.0
    labels, names = of.analysis.labels("op")
    labels = labels[of.records]
    sums = np.bincount(labels, lost_s, len(names))
    for at in np.flatnonzero(sums > LEAST * account.wall_s).tolist():
        mine = np.flatnonzero((labels == at) & (lost_s > 0))
        causes = account.of_calls(mine)
        yield HotSpot(
            what=plain_name(names[at]),
            seconds=float(sums[at]),
            share=float(sums[at]) / account.wall_s,
            needs_s=sum(seconds for (cause, _), seconds in causes.items() if cause is Cause.LIGHT),
            read_by=_readers(facts, mine),
            causes=tuple(dict.fromkeys(cause for cause, _ in causes if cause in _OF_OPS)),
            where=of.where(mine),
        )


def _causes(facts: Facts, drafts: Sequence[Draft]) -> Iterable[HotSpot]:
    account = facts.of.analysis.account
    # of calls the chief cause is mended: what else they have is in other calls too
    covered = {cause for draft in drafts for cause in draft.causes[: 1 if len(draft.calls) else None]}
    for row in account.rows:
        if not row.cause.is_work and row.cause not in covered and row.share > LEAST:
            yield HotSpot(what=WORDS[row.cause], seconds=row.seconds, share=row.share, needs_s=0.0, read_by="",
                          causes=(row.cause,), where=row.where)  # fmt: skip


def _readers(facts: Facts, calls: Int64) -> str:
    """In words, which ops read what the longest of some calls writes; empty where that is not known."""
    of = facts.of
    if not facts.values.known:
        return ""
    longest = int(calls[np.argmax(of.seconds[calls])])
    readers = {reader for storage in of.writes[longest] for reader in of.readers[storage] if reader > longest}
    names = sorted({of.op(reader).name for reader in readers})
    return ", ".join(_READERS.get(name, plain_name(name)) for name in names[:2]) or "nobody"
