"""What is compiled of a hot loop, and by what: its plan, made when its first kind of call is to be compiled."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from rooflight.compiling.checked_backend import CHECKED_RUNS, CheckedBackend
from rooflight.compiling.dynamic_sizes import numbers_vary
from rooflight.compiling.hot_entry import Entry
from rooflight.compiling.hot_options import HotOptions
from rooflight.compiling.hot_plan import Inductor, Plan, alike, inner_backend
from rooflight.compiling.hot_seen import CallKind, Seen


def planned(
    kind: CallKind,
    seen: Seen,
    entry: Entry,
    modules: dict[int, tuple[nn.Module, int]],
    options: HotOptions,
    allowed: Callable[[], bool],
) -> tuple[Plan[CheckedBackend], Inductor | None]:
    """The plan for a loop of which ``kind`` is to be compiled first, and its compiler if that is Inductor. ``modules``:
    those that a function calls, and how often in a call; ``allowed``: whether a graph may be compiled now.

    Raises ValueError where there is nothing to compile, or no backend.
    """
    patterns = [kind.pattern for kind in seen.kinds.values() if kind.pattern is not None]
    regions: list[nn.Module] = []
    if entry.module is not None:
        regions = alike(entry.module) if kind.expected is not None and kind.expected.blocks else []
    elif any(pattern.backward or pattern.optimizer for pattern in patterns) or any(
        times > 1 for _, times in modules.values()
    ):
        regions = [module for module, _ in modules.values()]
        if not regions:
            raise ValueError("it runs its own backward pass or optimizer, and calls no module that could be compiled")
    inner, found = inner_backend(
        options.backend,
        options.mode,
        limit_s=options.limit_s,
        same_random=any(pattern.random for pattern in patterns),
    )
    backend = CheckedBackend(inner, checks=CHECKED_RUNS if options.check else 0, allowed=allowed)
    dynamic = options.dynamic
    if dynamic is None and any(map(numbers_vary, seen.kinds.values())):
        dynamic = True
    plan = Plan(entry.eager, regions, backend, dynamic=dynamic)
    return plan, found if isinstance(found, Inductor) else None
