"""What a user asks to be sampled: the options of ``rooflight sample``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from rooflight.records.options import Option

SweepName = Literal["test", "collect", "smart"]
"""The sweeps that are shipped."""

_NUMBER = r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_TIME = re.compile(f"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """The options of ``rooflight sample``; those that are not set are None.

    ``operators`` are names, or ``file.py:name``; none is every operator that the sweep is for. ``config`` is a YAML
    file, which names operator and sweep instead. ``box_s`` is how long one direction of one shape may take, in seconds.
    ``warm`` leaves the caches as they are before each sample.
    """

    panel: ClassVar = "Sampling"
    operators: tuple[str, ...] = ()
    precision: Annotated[
        str | None, Option("fp16, bf16 or fp32. [default: bf16; fp32 on a CPU]", "DTYPE", names="dtypes")
    ] = None
    config: Annotated[
        Path | None,
        Option("A sweep's YAML file, in estimate-train-time's form.", "FILE", flags=("--config", "--config_path")),
    ] = None
    sweep: Annotated[SweepName, Option("test: seconds; collect: the full grids; smart: until the budget is spent.")] = (
        "smart"
    )
    budget: Annotated[str, Option("How long --sweep smart may take: 90s, 5m, 2h, 1h30m.", "TIME")] = "1m"
    parts: Annotated[int, Option("Divide the sweep into this many parts.", "N")] = 1
    part: Annotated[int, Option("Part to sample, of --parts, counted from 1.", "N")] = 1
    device_num: Annotated[
        int | None,
        Option("This GPU only, from 0. [default: every visible one]", "N", flags=("--device-num", "--device_num")),
    ] = None
    out: Annotated[Path, Option("Folder for sampling_data and sampling_log. [default: this folder]", "FOLDER")] = Path()
    threads: Annotated[int | None, Option("Threads (and cores) on a CPU. [default: torch's]", "N")] = None
    box_s: Annotated[
        float, Option("Longest time for a forward or a backward pass of one shape.", "SECONDS", flags=("--time-box",))
    ] = 5.0
    warm: Annotated[bool, Option("Do not empty the caches before each sample.", flags=("--warm-cache",))] = False
    cpu: Annotated[bool, Option("Sample on the CPU even where there is a GPU.")] = False

    @property
    def budget_s(self) -> float:
        """What smart may take. Raises ValueError for a text that is no time."""
        return seconds(self.budget)

    @property
    def cold(self) -> bool:
        """Whether the caches are emptied before each sample."""
        return not self.warm

    @property
    def kind(self) -> str:
        """ "cuda" where there is a GPU and ``cpu`` is not set."""
        from rooflight.hardware.machine.hardware import cuda_name

        return "cpu" if self.cpu or cuda_name() is None else "cuda"

    @property
    def dtype(self) -> str:
        """torch's name of the precision. Raises ValueError for an unknown one."""
        from rooflight.records.dtypes import dtype_name

        return dtype_name(self.precision or ("bf16" if self.kind == "cuda" else "fp32"))


def seconds(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``5m``, ``1.5h`` or ``1h30m``. Raises ValueError for anything else, and for 0."""
    parts = _TIME.fullmatch(f"{text}s" if re.fullmatch(_NUMBER, text) else text)
    hours, minutes, rest = (float(part or 0) for part in parts.groups()) if parts else (0.0, 0.0, 0.0)
    found = 3600 * hours + 60 * minutes + rest
    if not 0 < found < float("inf"):
        raise ValueError(f'--budget "{text}" is no time: write 90s, 5m, 2h or 1h30m')
    return found
