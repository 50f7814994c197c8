"""What compiling a hot loop is expected to gain and to cost, before it is tried."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from rooflight.devices.spec import DeviceSpec, MemoryLevel, Roofs

if TYPE_CHECKING:
    from rooflight.records.session import Session

_BASE_S: Final = 3.0
_PER_OP_S: Final = 0.04
_WITH_BACKWARD: Final = 2.2
"""A backward graph has somewhat more operations than its forward, and is compiled after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedGain:
    """``speedup``: eager over compiled time of a run; ``compile_s``: what compiling takes once; ``source`` of both.
    ``blocks``: only the module's blocks that are alike are compiled, one for all.
    """

    speedup: float
    compile_s: float
    source: str
    blocks: bool = False

    def of_blocks(self, count: int, share: float) -> ExpectedGain:
        """The same where only ``count`` blocks that are alike are compiled, with a ``share`` of the operations."""
        return ExpectedGain(
            speedup=1 / (1 - share + share / self.speedup),
            compile_s=_BASE_S + max(0.0, self.compile_s - _BASE_S) * share / count,
            source=self.source,
            blocks=True,
        )

    def total_s(self, eager_s: float, runs: float) -> float:
        """What compiling and so many runs take, each of which takes ``eager_s`` eagerly."""
        return self.compile_s + runs * eager_s / self.speedup


def expected_gain(
    session: Session, eager_s: list[float], *, mode: str | None = None, backward: bool = False
) -> ExpectedGain:
    """Of the recorded call of a loop whose runs took ``eager_s``, by ``prediction.gain``; from the number of operations
    where that cannot say. ``backward``: a backward pass follows, which was not recorded, but is in the times.
    """
    seconds = statistics.median(eager_s)
    operations = int(session.counted.sum())
    try:
        from rooflight.front.sessions import analyze
        from rooflight.prediction.gain import predicted_gain

        gain = predicted_gain(analyze(session, _device(session)), mode or "default").given_eager(seconds)
        speedup, compile_s, source = gain.steady_speedup, gain.compile_s, "rooflight.prediction.gain"
    except (ValueError, ArithmeticError, LookupError):
        # an op costs a CPU's host about 5 µs to issue, of which generated code saves most
        saved = min(0.5, 0.6 * operations * 5e-6 / seconds) if seconds > 0 else 0.0
        speedup, compile_s, source = 1 / (1 - saved), _BASE_S + _PER_OP_S * operations, "number of operations"
    above = (compile_s - _BASE_S) * (_WITH_BACKWARD if backward else 1.0)
    return ExpectedGain(speedup=speedup, compile_s=_BASE_S + max(0.0, above), source=source)


def _device(session: Session) -> DeviceSpec:
    """The device of a session as it is known without measuring anything: a loop does not wait for a calibration.

    Raises ValueError for a GPU that the catalog does not know.
    """
    from rooflight.devices import calibrations
    from rooflight.devices.catalog import find_by_torch_name
    from rooflight.machine.presence import cuda_name

    kind = session.environment.get("device_kind", "cpu")
    kept = calibrations.load(session.environment.get("fingerprint", ""))
    if kept is not None:
        return calibrations.device_of(kept)
    if kind == "cuda":
        known = find_by_torch_name(cuda_name() or "")
        if known is None:
            raise ValueError("a GPU that the catalog does not have")
        return known
    return _some_cpu()


@lru_cache(maxsize=1)
def _some_cpu() -> DeviceSpec:
    """A CPU as they are, by its number of threads: the ratio of two predicted times depends little on its roofs."""
    from rooflight.machine.environment import torch_threads

    threads = torch_threads() or 1
    roofs = Roofs(
        source="typical of a core",
        matrix_flops_per_s={"float32": 50e9 * threads, "bfloat16": 50e9 * threads},
        vector_flops_per_s={"float32": 25e9 * threads},
        memory=(MemoryLevel(name="L2", capacity_bytes=1 << 20, bytes_per_s=40e9 * threads),
                MemoryLevel(name="DRAM", bytes_per_s=min(12e9 * threads, 200e9))),
    )  # fmt: skip
    return DeviceSpec(name="CPU", vendor="", architecture="", kind="cpu", datasheet=roofs)
