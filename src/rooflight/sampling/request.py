"""What a user asks to be sampled: the options of ``rooflight sample``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rooflight.machine.hardware import cuda_name
from rooflight.records.dtypes import dtype_name

_NUMBER = r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_TIME = re.compile(f"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """The options of ``rooflight sample``; those that are not set are None.

    ``operators`` are names, or ``file.py:name``; none is every operator that the sweep is for. ``config`` is a YAML
    file, which names operator and sweep instead. ``sweep`` is "test", "collect" or "smart", ``budget_s`` what smart may
    take. ``box_s`` is how long one direction of one shape may take, in seconds. ``cold`` empties the caches before each
    sample.
    """

    operators: tuple[str, ...] = ()
    precision: str | None = None
    config: Path | None = None
    sweep: str = "smart"
    budget_s: float = 60.0
    parts: int = 1
    part: int = 1
    device_num: int | None = None
    out: Path = Path()
    threads: int | None = None
    box_s: float = 5.0
    cold: bool = True
    cpu: bool = False

    @property
    def kind(self) -> str:
        """ "cuda" where there is a GPU and ``cpu`` is not set."""
        return "cpu" if self.cpu or cuda_name() is None else "cuda"

    @property
    def dtype(self) -> str:
        """torch's name of the precision. Raises ValueError for an unknown one."""
        return dtype_name(self.precision or ("bf16" if self.kind == "cuda" else "fp32"))


def seconds(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m``, ``1.5h`` or ``1h30m``. Raises ValueError for anything else, and for 0."""
    parts = _TIME.fullmatch(f"{text}s" if re.fullmatch(_NUMBER, text) else text)
    hours, minutes, rest = (float(part or 0) for part in parts.groups()) if parts else (0.0, 0.0, 0.0)
    found = 3600 * hours + 60 * minutes + rest
    if not 0 < found < float("inf"):
        raise ValueError(f'--budget "{text}" is no time: write 90s, 5m, 2h or 1h30m')
    return found
