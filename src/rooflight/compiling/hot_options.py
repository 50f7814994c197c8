"""How a hot loop is treated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from rooflight.compiling.hot_paths import HotPath
from rooflight.machine.caches import usable_cores


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
    background: bool | None = None
    clock: Callable[[], float] = perf_counter

    @property
    def beside(self) -> bool:
        """Whether to compile in a process beside the loop; if not told, where the program leaves a core free."""
        return leaves_a_core() if self.background is None else self.background


def leaves_a_core() -> bool:
    """Whether torch runs on the CPU alone, and on fewer threads than there are cores: threads that have to wait for a
    compiler on their core slow all others of their loop.
    """
    import torch

    return not torch.cuda.is_available() and torch.get_num_threads() < len(usable_cores())
