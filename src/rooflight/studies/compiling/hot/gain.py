"""What compiling a kind of call is expected to bring: what an earlier run of the program measured, or a prediction.

What became of a kind is on disk under a key, one small JSON file per kind. Part of the key is the pattern of a call:
its recorded operations as one signature.
"""

from __future__ import annotations

import contextlib
import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.hardware.machine.environment import fingerprint
from rooflight.records.files import cache_folder, write_kept
from rooflight.records.record import Direction
from rooflight.records.session import Session
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.studies.compiling.hot.calls import Kind
from rooflight.studies.compiling.hot.plan import Entry, alike
from rooflight.studies.compiling.hot.state import CallKind, ExpectedGain, HotOptions, Pattern

if TYPE_CHECKING:
    from torch import nn


_LARGEST: Final = 1 << 16
_RANDOM: Final = ("rand", "bernoulli", "dropout", "normal_", "uniform_", "multinomial", "exponential_")


def pattern_of(session: Session) -> Pattern:
    """The pattern of the counted records of a session."""
    columns = session.columns
    counted = np.flatnonzero(session.counted)
    numbers = columns.signature[counted]
    wiring = _wiring(session, counted)
    hashes = []
    for describe in (repr, _shape_free):
        texts = [describe(op) for op in session.signatures]
        kinds = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        digest = blake2b(digest_size=16)
        # the kinds in order of their first call, so that their numbers do not depend on what else was recorded
        order: dict[int, int] = {}
        for number in numbers.tolist():
            order.setdefault(kinds[texts[number]], len(order))
        names = list(kinds)
        digest.update("\n".join(names[kind] for kind in order).encode())
        digest.update(np.array([order[kinds[texts[n]]] for n in numbers.tolist()], dtype=np.int64).tobytes())
        digest.update(wiring)
        hashes.append(digest.digest())
    used = {session.signatures[number].name for number in set(numbers.tolist())}
    directions = set(columns.direction[counted].tolist())
    return Pattern(
        operations=len(counted),
        exact=hashes[0],
        shape_free=hashes[1],
        random=any(part in name for name in used for part in _RANDOM),
        backward=int(Direction.BACKWARD) in directions,
        optimizer=int(Direction.OPTIMIZER) in directions,
    )


def _wiring(session: Session, counted: np.ndarray) -> bytes:
    columns = session.columns
    order: dict[int, int] = {}
    flat: list[int] = []
    reads, writes = columns.read_ids.tolist(), columns.written_ids.tolist()
    read_ends, write_ends = columns.read_offsets.tolist(), columns.written_offsets.tolist()
    for index in counted.tolist():
        for ids, ends in ((reads, read_ends), (writes, write_ends)):
            flat.append(-1)
            flat += [order.setdefault(number, len(order)) for number in ids[ends[index] : ends[index + 1]]]
    return np.array(flat, dtype=np.int64).tobytes()


def _shape_free(op: OpSignature) -> str:
    return f"{op.name} {[_rank(spec) for spec in op.inputs]} {[_rank(spec) for spec in op.outputs]}"


def _rank(spec: TensorSpec | None) -> str:
    return "-" if spec is None else f"{len(spec.shape)}:{spec.dtype}"


class Remembered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a trial: ``compiled``, with the speed-up and the seconds that compiling took, or ``eager``, and
    why. ``blocks``: only blocks that are alike were compiled.
    """

    outcome: Literal["compiled", "eager"]
    reason: str = ""
    speedup: float | None = None
    compile_s: float | None = None
    blocks: bool = False
    schema: Literal["rooflight.hot-path/1"] = "rooflight.hot-path/1"


def key_of(eager: Callable[..., Any], kind: Kind, pattern: Pattern, *, one_size: bool, how: str) -> str:
    """What the outcome depends on: code, kind of call, operations with their sizes, versions, machine, and how the
    loop is compiled.
    """
    import torch

    digest = blake2b(digest_size=16)
    for part in (
        *_code(eager),
        repr(kind),
        (pattern.exact if one_size else pattern.shape_free).hex(),
        torch.__version__,
        platform.python_version(),
        fingerprint("cuda" if "cuda" in repr(kind) else "cpu"),
        str(torch.get_num_threads()),
        how,
    ):
        digest.update(f"{part}\n".encode())
    return digest.hexdigest()


def recall(key: str) -> Remembered | None:
    """What was found out under this key; None where nothing was, or where the file is not one that this wrote."""
    try:
        path = _path(key)
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        return msgspec.json.decode(path.read_bytes(), type=Remembered)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None


def remember(key: str, found: Remembered) -> None:
    """Keep what was found out. Nothing is kept where the folder cannot be written."""
    with contextlib.suppress(OSError):
        write_kept(_path(key), msgspec.json.encode(found))


def _path(key: str) -> Path:
    return cache_folder() / "hot_paths" / f"{key}.json"


def _code(eager: Callable[..., Any]) -> Iterator[str]:
    from torch import nn

    module = getattr(eager, "__self__", None)
    if isinstance(module, nn.Module):
        for name, inner in module.named_modules():
            yield f"{name} {type(inner).__qualname__}"
            yield from _of_code(getattr(type(inner).forward, "__code__", None))
        yield from (f"{name} {tuple(value.shape)} {value.dtype}" for name, value in module.named_parameters())
    else:
        yield getattr(eager, "__qualname__", type(eager).__qualname__)
        yield from _of_code(getattr(eager, "__code__", None))


def _of_code(code: CodeType | None) -> Iterator[str]:
    if code is not None:
        yield code.co_code.hex()
        yield repr(code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _of_code(constant)
            else:
                yield repr(constant)


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
        high = gain.speedup_high
    except (ValueError, ArithmeticError, LookupError):
        # an op costs a CPU's host about 5 µs to issue, of which generated code saves most
        saved = min(0.5, 0.6 * operations * 5e-6 / seconds) if seconds > 0 else 0.0
        speedup, compile_s, source = 1 / (1 - saved), _BASE_S + _PER_OP_S * operations, "number of operations"
        high = None
    above = (compile_s - _BASE_S) * (_WITH_BACKWARD if backward else 1.0)
    return ExpectedGain(speedup=speedup, high=high, compile_s=_BASE_S + max(0.0, above), source=source)


def _device(session: Session) -> DeviceSpec:
    """Known without measuring: a loop does not wait for a calibration. Raises ValueError for an unknown GPU."""
    from rooflight.hardware.devices import calibrations
    from rooflight.hardware.devices.catalog import find_by_torch_name
    from rooflight.hardware.machine.hardware import cuda_name

    kind = session.environment.get("device_kind", "cpu")
    known = calibrations.load_for(session.environment)
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
    from rooflight.hardware.machine.environment import torch_threads

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
    def gain(of_share: float) -> float:
        return 1 / (1 - share + share / of_share)

    return replace(
        whole,
        speedup=gain(whole.speedup),
        high=None if whole.high is None else gain(whole.high),
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
