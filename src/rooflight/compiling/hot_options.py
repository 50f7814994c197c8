"""How a hot loop is treated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from rooflight.compiling.hot_paths import HotPath


@dataclass(frozen=True, slots=True, kw_only=True)
class HotOptions:
    """How a loop is treated; see ``hot``."""

    hot_threshold: int = 10
    expected_runs: int | None = None
    on_hot: Callable[[HotPath], object] | None = None
    check: bool = True
    remember: bool = True
    limit_s: float = 600.0
    backend: Any = "inductor"
    mode: str | None = None
    dynamic: bool | None = None
    background: bool = False
    clock: Callable[[], float] = perf_counter
