"""Probes of a CPU: matrix peaks, bandwidth of each cache and of main memory, cost of the smallest op.

All run with torch's own threads on random data. Nothing is subtracted and nothing is scaled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from rooflight.hardware.machine.hardware import Cache, data_caches, memory_bytes
from rooflight.hardware.machine.probes import Probe, Trial, streams

Run = Callable[[], object]

MATRIX_DTYPES = ("float32", "bfloat16", "float16", "float64")
_FLOAT_BYTES = 4
_LINE = 16  # float32s in a cache line


def probes(*, quick: bool = False) -> tuple[Probe, ...]:
    """Every probe for this CPU. ``quick`` keeps few and small trials: for tests, not for roofs."""
    import torch

    threads = torch.get_num_threads()
    caches = data_caches()
    last_level_bytes = caches[-1].capacity_bytes(threads) if caches else 32 << 20
    return (
        *(
            Probe(name=f"matrix {dtype}", unit="FLOP", trials=_products(dtype, threads, quick or _emulated(dtype)))
            for dtype in MATRIX_DTYPES
        ),
        Probe(name="matrix int8", unit="FLOP", trials=_int8_products(quick)),
        Probe(name="vector float32", unit="FLOP", trials=(_multiply_add(threads),)),
        *(
            Probe(name=f"memory {cache.name}", unit="B", trials=tuple(_cache_trials(caches, index, threads)))
            for index, cache in enumerate(caches)
        ),
        Probe(name="memory DRAM", unit="B", trials=_dram_trials(_dram_bytes(last_level_bytes, quick))),
        Probe(name="launch", unit="op", trials=_smallest_ops()),
    )


def _products(dtype: str, threads: int, quick: bool) -> tuple[Trial, ...]:
    """Matrix products by every library torch may call: its BLAS (mm, addmm, bmm) and oneDNN (linear, conv2d)."""
    sides = [256, 512] if quick else [256, 512, 768, 1024, 1536, 2048]
    if threads > 8 and not quick:
        sides += [3072, 4096]  # many cores need more work per call
    trials = [_square(dtype, "mm", side) for side in sides]
    trials.append(_square(dtype, "linear", 512 if quick else 1024))
    if not quick:
        trials += [
            _square(dtype, "addmm", 1024),
            _bmm(dtype, 16, 256),
            _bmm(dtype, 8, 512),
            _convolution(dtype, images=1, channels=256, side=16, kernel=3),
            _convolution(dtype, images=8, channels=256, side=28, kernel=1),
            _convolution(dtype, images=8, channels=256, side=30, kernel=3),
            _convolution(dtype, images=2, channels=512, side=30, kernel=3),
        ]
    return tuple(sorted(trials, key=lambda trial: trial.work))


def _emulated(dtype: str) -> bool:
    """Whether this CPU must convert the dtype before it multiplies: that gives no roof, and large products would take
    minutes.
    """
    import torch

    if dtype == "float16":
        return not torch.ops.mkldnn._is_mkldnn_fp16_supported()
    if dtype == "bfloat16":
        return not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return False


def _square(dtype: str, name: str, side: int) -> Trial:
    def prepare() -> Run:
        import torch
        from torch.nn.functional import linear

        left, right = _random(dtype, side, side), _random(dtype, side, side)
        third = _random(dtype, side, side) if name == "mm" else _random(dtype, side)
        if name == "mm":
            return lambda: torch.mm(left, right, out=third)
        if name == "addmm":
            return lambda: torch.addmm(third, left, right.t())
        return lambda: linear(left, right, third)

    return Trial(pattern=f"{name} {side}", work=2 * side**3, prepare=prepare)


def _bmm(dtype: str, batch: int, side: int) -> Trial:
    def prepare() -> Run:
        import torch

        left, right = _random(dtype, batch, side, side), _random(dtype, batch, side, side)
        return lambda: torch.bmm(left, right)

    return Trial(pattern=f"bmm {batch} x {side}", work=2 * batch * side**3, prepare=prepare)


def _convolution(dtype: str, *, images: int, channels: int, side: int, kernel: int) -> Trial:
    """Without padding: a padded tap costs nothing, so counting it would raise the roof above the unit's speed."""

    def prepare() -> Run:
        import torch
        from torch.nn.functional import conv2d

        layout = torch.channels_last
        pixels = _random(dtype, images, channels, side, side).contiguous(memory_format=layout)
        weight = _random(dtype, channels, channels, kernel, kernel).contiguous(memory_format=layout)
        return lambda: conv2d(pixels, weight)

    out_side = side - kernel + 1
    work = 2 * images * out_side**2 * channels**2 * kernel**2
    return Trial(pattern=f"conv2d {kernel}x{kernel} {images}x{channels}x{side}x{side}", work=work, prepare=prepare)


def _int8_products(quick: bool) -> tuple[Trial, ...]:
    def trial(side: int) -> Trial:
        def prepare() -> Run:
            import torch

            left, right = (torch.randint(-127, 128, (side, side), dtype=torch.int8) for _ in range(2))
            return lambda: torch._int_mm(left, right)

        return Trial(pattern=f"_int_mm {side}", work=2 * side**3, prepare=prepare)

    return tuple(trial(side) for side in ((256, 512) if quick else (512, 1024, 2048)))


def _multiply_add(threads: int) -> Trial:
    """2 FLOPs per element on 8 KiB per thread, in L1."""
    count = 8 * 1024 // (3 * _FLOAT_BYTES) // _LINE * _LINE
    repeats = 32

    def prepare() -> Run:
        out, left, right = (
            _window(threads, count, repeats),
            _repeated(threads, count, repeats),
            _repeated(threads, count, repeats),
        )
        return lambda: out.addcmul_(left, right)

    return Trial(pattern="addcmul_ in L1", work=2 * threads * count * repeats**3, prepare=prepare)


def _cache_trials(caches: tuple[Cache, ...], index: int, threads: int) -> list[Trial]:
    """Working sets of a half and a quarter of the level, where they are too large for the nearer level.

    Where both fit the nearer one, the half is measured all the same: what it runs at is no slower than this level.
    """
    share_bytes = caches[index].share_bytes(threads)
    nearer_bytes = caches[index - 1].share_bytes(threads) if index else 0
    sizes = [size for size in (share_bytes // 4, share_bytes // 2) if size >= 2 * nearer_bytes]
    return [trial for size in sizes or [share_bytes // 2] for trial in _streams(size, threads)]


def _streams(set_bytes: int, threads: int) -> list[Trial]:
    """Ops that stream a small set many times within one call, so that the call's own cost vanishes.

    Inputs repeat through a stride of 0. Outputs repeat as a window that slides by a cache line: torch refuses to write
    through a stride of 0. Every thread has a set of its own.
    """

    def trial(name: str, arrays: int, touches: int, make: Callable[[Any, Any, Any], Run]) -> Trial:
        count = max(_LINE, set_bytes // arrays // _FLOAT_BYTES // _LINE * _LINE)
        per_thread_bytes = max(64 << 20, 4 * count * _FLOAT_BYTES)
        repeats = max(2, round((per_thread_bytes / (count * _FLOAT_BYTES)) ** (1 / 3)))

        def prepare() -> Run:
            inputs = [_repeated(threads, count, repeats) for _ in range(2)]
            return make(_window(threads, count, repeats), *inputs)

        work = touches * threads * count * repeats**3 * _FLOAT_BYTES
        return Trial(pattern=f"{name} on {set_bytes >> 10} KiB per thread", work=work, prepare=prepare)

    return [trial(*stream) for stream in streams()]


def _dram_bytes(last_level_bytes: int, quick: bool) -> int:
    """Eight times the last cache, at least 256 MiB, so that it keeps almost nothing; at most a sixteenth of memory."""
    if quick:
        return 4 * last_level_bytes
    wanted = max(8 * last_level_bytes, 256 << 20)
    memory = memory_bytes()
    return wanted if memory is None else min(wanted, memory // 16)


def _dram_trials(array_bytes: int) -> tuple[Trial, ...]:
    count = array_bytes // _FLOAT_BYTES // _LINE * _LINE

    @functools.cache  # shared by the trials: filling hundreds of MiB takes longer than reading them
    def arrays() -> list[Any]:
        return [_large_random(count) for _ in range(3)]

    def trial(name: str, _: int, touches: int, make: Callable[[Any, Any, Any], Run]) -> Trial:
        work = touches * count * _FLOAT_BYTES
        return Trial(pattern=f"{name} on {array_bytes >> 20} MiB arrays", work=work, prepare=lambda: make(*arrays()))

    return tuple(trial(*stream) for stream in streams())


def _smallest_ops() -> tuple[Trial, ...]:
    """Ops on one element: their time is that of torch's dispatcher."""
    calls = 500

    def trial(name: str, make: Callable[[Any], Run]) -> Trial:
        def prepare() -> Run:
            import torch

            one = make(torch.rand(1))

            def run() -> None:
                for _ in range(calls):
                    one()

            return run

        return Trial(pattern=f"{name} on 1 element", work=calls, prepare=prepare)

    return (
        trial("neg_", lambda number: number.neg_),
        trial("add_", lambda number: lambda: number.add_(number)),
        trial("relu_", lambda number: number.relu_),
    )


def _random(dtype: str, *shape: int) -> Any:
    import torch

    tile = torch.randn(65_521)  # a prime: repeats do not line up with rows
    count = math.prod(shape)
    return tile.repeat(-(-count // tile.numel()))[:count].view(shape).to(getattr(torch, dtype))


def _large_random(count: int) -> Any:
    """Filled by all threads at once, so that on several memory nodes each page lies near its reader."""
    import torch

    tile = torch.rand(1 << 16)
    out = torch.empty(count)
    whole = count // tile.numel() * tile.numel()
    out[:whole].view(-1, tile.numel()).copy_(tile)
    out[whole:] = 0.5
    return out


def _repeated(threads: int, count: int, repeats: int) -> Any:
    """[threads, repeats, repeats, repeats, count], where each thread has ``count`` numbers of its own."""
    import torch

    rows = torch.rand(threads, 1, 1, 1, count)
    return rows.expand(threads, repeats, repeats, repeats, count)


def _window(threads: int, count: int, repeats: int) -> Any:
    """Like ``_repeated``, but to write to: each repeat starts one cache line after the previous one."""
    import torch

    span = count + 3 * _LINE * repeats + 1024
    rows = torch.rand(threads * span)
    return rows.as_strided((threads, repeats, repeats, repeats, count), (span, _LINE, _LINE, _LINE, 1))
