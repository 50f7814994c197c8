"""What torch.compile compiled in this process so far, by torch's own account: how often, why again, and what broke."""

from __future__ import annotations

import sys
from typing import Any, Final

from rooflight.records.account import Place
from rooflight.records.timeline import Compilation
from rooflight.sources.capture.own_code import shown

_LETTERS: Final = 160
_LIMIT: Final = "recompile limit"


def compilations() -> tuple[Compilation, ...]:
    """Each function with how often it was compiled, and each reason of a graph break; none where nothing was."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return ()
    limit = int(sys.modules["torch._dynamo.config"].recompile_limit)
    found: dict[Place, list[str]] = {}
    for each in utils.get_compilation_metrics():
        if each.co_name is not None:
            file = each.co_filename or ""
            own = Place(function=f"torch's {each.co_name}")  # no line of the program's
            line = Place(file=shown(file), line=each.co_firstlineno or 0, function=each.co_name)
            place = own if "-packages/torch/" in file else line
            found.setdefault(place, []).append(_first_line(each.recompile_reason))
    compiled = [
        Compilation(where=place, times=len(why), reason=why[-1], limited=len(why) >= limit)
        for place, why in found.items()
    ]
    reasons = {_first_line(reason) for name in ("graph_break", "unimplemented") for reason in utils.counters[name]}
    breaks = [Compilation(where=None, times=0, reason=reason) for reason in sorted(reasons) if _LIMIT not in reason]
    return (*compiled, *breaks)


def _first_line(reason: str | None) -> str:
    """``n == 7`` of torch's ``0/7: n == 7   # train.py:3 in f``."""
    text = (reason or "").strip().split("\n")[0].split("  # ")[0].strip()
    head, _, rest = text.partition(": ")
    return (rest if rest and head.replace("/", "").isdigit() else text)[:_LETTERS]
