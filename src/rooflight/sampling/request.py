"""What a user wants sampled: the options of ``rooflight sample``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rooflight.machine.presence import cuda_name
from rooflight.records.dtypes import dtype_name

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


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
    """Seconds of ``90``, ``90s``, ``5m`` or ``2h``. Raises ValueError for anything else, and for 0."""
    unit = _UNITS.get(text[-1:])
    try:
        found = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ValueError(f'"{text}" is no time: write 90s, 5m or 2h')
    return found
