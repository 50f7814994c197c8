"""What compiling a kind of call is expected to bring: what an earlier run of the program measured, or a prediction."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from rooflight.compiling.hot.calls import Kind
from rooflight.compiling.hot.outcomes import Remembered, key_of, pattern_of, recall, remember
from rooflight.compiling.hot.plan import Entry, alike
from rooflight.compiling.hot.state import CallKind, ExpectedGain, HotOptions
from rooflight.devices.spec import DeviceSpec, MemoryLevel, Roofs

if TYPE_CHECKING:
    from torch import nn

    from rooflight.records.session import Session

_BASE_S: Final = 3.0
_PER_OP_S: Final = 0.04
_WITH_BACKWARD: Final = 2.2
"""A backward graph has somewhat more operations than its forward, and is compiled after it."""


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
        from rooflight.prediction.gain.gain import predicted_gain

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
    from rooflight.machine.hardware import cuda_name

    kind = session.environment.get("device_kind", "cpu")
    known = calibrations.load(session.environment.get("fingerprint", ""))
    if known is not None:
        return calibrations.device_of(known)
    if kind == "cuda":
        gpu = find_by_torch_name(cuda_name() or "")
        if gpu is None:
            raise ValueError("a GPU that the catalog does not have")
        return gpu
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


def outlook(
    key: Kind,
    kind: CallKind,
    entry: Entry,
    session: Session,
    options: HotOptions,
    *,
    open_ended: bool,
    left: float | None,
) -> ExpectedGain | None:
    """The gain and cost of compiling a kind, of which ``session`` has a call. None, with the kind left eager, where an
    earlier run compiled it for nothing. ``open_ended``: runs are timed until the next call; ``left`` are to come.

    A module with blocks that are alike has these compiled, one for all, unless the whole takes less in all: more time
    to compile, and less in the runs that are left, where that is known.
    """
    kind.pattern = pattern_of(session)
    if options.remember:
        backend = options.backend
        name = backend if isinstance(backend, str) else getattr(backend, "__qualname__", type(backend).__qualname__)
        how = f"{name} {options.mode} {options.dynamic}"  # on which the cost depends
        kind.key = key_of(entry.eager, key, kind.pattern, one_size=len(kind.sizes) == 1, how=how)
        found = recall(kind.key)
        if found is not None and found.outcome == "eager":
            kind.give_up(f"an earlier run found: {found.reason}")
            return None
        if found is not None and found.speedup and found.compile_s:
            return ExpectedGain(
                speedup=found.speedup, compile_s=found.compile_s, source="an earlier run", blocks=found.blocks
            )
    whole = expected_gain(session, kind.eager_s, mode=options.mode, backward=open_ended and not kind.backward)
    parts = alike(entry.module) if entry.module is not None else []
    if entry.module is None or not parts:
        return whole
    blocks = _of_blocks(whole, len(parts), _share(session, entry.module, parts))
    if left is None:
        return blocks
    eager_s = statistics.median(kind.eager_s)
    return min(blocks, whole, key=lambda way: way.total_s(eager_s, left))


def _of_blocks(whole: ExpectedGain, count: int, share: float) -> ExpectedGain:
    return replace(
        whole,
        speedup=1 / (1 - share + share / whole.speedup),
        compile_s=_BASE_S + max(0.0, whole.compile_s - _BASE_S) * share / count,
        blocks=True,
    )


def _share(session: Session, module: nn.Module, blocks: Sequence[nn.Module]) -> float:
    wanted = set(map(id, blocks))
    places = tuple(f"{name}." for name, each in module.named_modules() if id(each) in wanted)
    inside = np.array([f"{entry.path}.".startswith(places) for entry in session.modules])
    found = inside[session.columns.module[session.counted]]
    return float(found.mean()) if len(found) else 1.0


def remember_outcome(kind: CallKind) -> None:
    """Keep the end of a trial for the program's next run."""
    if kind.key and kind.decided:
        found = Remembered(
            outcome="compiled" if kind.state == "compiled" else "eager",
            reason=kind.reason,
            speedup=kind.speedup,
            compile_s=kind.compile_s,
            blocks=kind.expected is not None and kind.expected.blocks,
        )
        remember(kind.key, found)
