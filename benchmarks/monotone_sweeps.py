"""Does predicted time fall anywhere while the work grows? Sweeps of one size, all others fixed; every fall is listed.

    python benchmarks/monotone_sweeps.py [--models FOLDER] [--operators ...] [--devices ...] [--least 0.1] [--lines 20]

Products are swept in b, m, n and k, attention in its length and its heads, ops of rows in rows and width: on six
devices, in three dtypes, around several shapes. A sweep has multiples of 64 and powers of two up to 65,536, and beside
them sizes that fill no tile. A fall is a time below that of a size which, rounded up to a whole tile, is still no
larger: a library could have computed the smaller work in the blocks of the larger. Falls within one tile are not
counted, as kernels switch with alignment there. Falls of less than ``--least`` percent are not counted either.

A fall is *known* where work like both of its ends was measured on the device: measured times do fall, where alignment
decides. Of all others at least one end is a guess; those count by themselves.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rooflight.prediction.predictor import Predictor

DEVICES = ("A100-SXM4-80GB", "GH200-96GB", "H100-SXM5-80GB", "V100-PCIE-32GB", "B200-SXM", "MI300X")
DTYPES = ("fp32", "bf16", "fp8")
TILES = {"b": 1, "h": 1, "m": 256, "n": 256, "k": 64, "l": 128, "rows": 256, "width": 256}
"""Steps in which the work of kernels grows."""
LARGEST = {"b": 1024, "h": 128, "l": 32768}
SIZES = {
    "batched_mm": {"b": (1, 16), "m": (16, 512, 4096), "n": (128, 1024, 8192), "k": (128, 1024, 8192)},
    "sdpa": {"b": (1, 8), "h": (8, 32), "l": (512, 4096), "d": (64, 128)},
    "softmax_rows": {"rows": (256, 4096, 65536), "width": (128, 1024, 8192)},
    "layernorm_rows": {"rows": (256, 4096, 65536), "width": (128, 1024, 8192)},
    "gelu_rows": {"rows": (256, 4096, 65536), "width": (128, 1024, 8192)},
    "add": {"rows": (256, 4096, 65536), "width": (128, 1024, 8192)},
}
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Fall:
    """From size ``before`` to ``after`` of what is swept, the others ``fixed``: by a share of the time."""

    device: str
    dtype: str
    operator: str
    swept: str
    fixed: Mapping[str, int]
    before: int
    after: int
    share: float
    known: bool

    def __str__(self) -> str:
        fixed = " ".join(f"{name}={size}" for name, size in self.fixed.items())
        return (
            f"{self.device} {self.dtype} {self.operator} {fixed}, {self.swept} {self.before} to {self.after}: "
            f"{100 * self.share:.1f} % faster{' (known)' if self.known else ''}"
        )


def sweep_of(swept: str) -> Integers:
    """Sizes, ascending: powers of two, whole tiles, and others."""
    largest, tile = LARGEST.get(swept, 65536), TILES[swept]
    powers = 2 ** np.arange(int(np.log2(largest)) + 1)
    rng = np.random.default_rng(0)
    if tile == 1:
        return np.unique(np.concatenate([powers, np.arange(1, min(largest, 160) + 1)]))
    whole = tile * np.unique(np.geomspace(1, largest // tile, 60).astype(int))
    others = 8 * np.unique(np.exp(rng.uniform(0, np.log(largest / 8), 30)).astype(int))
    return np.unique(np.concatenate([powers, whole, np.arange(64, 2049, 64), others]))


def falls_of(sizes: Integers, times: NDArray[np.float64], tile: int) -> Iterator[tuple[int, int, float]]:
    """Places before and after a fall, and its share, for each size with less time than some smaller one's blocks."""
    whole = -(-sizes // tile) * tile
    order = np.argsort(whole, kind="stable")
    for place, size in enumerate(sizes):
        smaller = order[(whole[order] <= size) & (order < place)]
        if len(smaller):
            before = int(smaller[np.argmax(times[smaller])])
            share = 1 - float(times[place] / times[before])
            if share > 0:
                yield before, place, share


def swept(predictor: Predictor, device: str, dtype: str, operator: str) -> Iterator[tuple[int, list[Fall]]]:
    """Predictions of each sweep, and its falls."""
    bases = SIZES[operator]
    for name in bases:
        if name == "d":
            continue
        others = [other for other in bases if other != name]
        sizes = sweep_of(name)
        for chosen in product(*(bases[other] for other in others)):
            fixed = dict(zip(others, chosen, strict=True))
            try:
                batches = predictor.predict_shapes(operator, shapes_of(operator, {**fixed, name: sizes}), dtype, device)
            except ValueError:  # no peak of that dtype
                return
            batch = next(iter(batches.values()))
            finite = np.isfinite(batch.time_s)
            times, known = batch.time_s[finite], ~batch.extrapolated[finite]
            yield (
                int(finite.sum()),
                [
                    Fall(
                        device=device,
                        dtype=dtype,
                        operator=operator,
                        swept=name,
                        fixed=fixed,
                        before=int(sizes[finite][before]),
                        after=int(sizes[finite][after]),
                        share=share,
                        known=bool(known[before] and known[after]),
                    )
                    for before, after, share in falls_of(sizes[finite], times, TILES[name])
                ],
            )


def shapes_of(operator: str, sizes: Mapping[str, object]) -> dict[str, object]:
    """The operator's parameters: of attention as many keys as queries."""
    shapes = dict(sizes)
    if operator == "sdpa":
        length = shapes.pop("l")
        shapes |= {"q": length, "kv": length, "kv_heads": shapes["h"], "causal": 1}
    return shapes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--operators", nargs="*", default=list(SIZES))
    parser.add_argument("--devices", nargs="*", default=list(DEVICES))
    parser.add_argument("--least", type=float, default=0.1)
    parser.add_argument("--lines", type=int, default=20)
    given = parser.parse_args()
    predictor = Predictor.load(given.models) if given.models else Predictor()
    print("| operator | swept | device | predictions | known falls | largest | other falls | largest |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    every: list[Fall] = []
    for operator, device in product(given.operators, given.devices):
        counts: dict[str, int] = dict.fromkeys((name for name in SIZES[operator] if name != "d"), 0)
        found: list[Fall] = []
        for dtype in DTYPES:
            bases = SIZES[operator]
            names = [name for name in counts for _ in product(*(bases[other] for other in bases if other != name))]
            for name, (count, falls) in zip(names, swept(predictor, device, dtype, operator), strict=False):
                counts[name] += count
                found += [fall for fall in falls if fall.share * 100 >= given.least]
        for name, count in counts.items():
            cells = (of_kind([fall for fall in found if fall.swept == name], known) for known in (True, False))
            print(f"| {operator} | {name} | {device} | {count:,} | {' | '.join(cells)} |", flush=True)
        every += found
    every.sort(key=lambda fall: -fall.share)
    for fall in every[: given.lines]:
        print(fall)
    for known, kind in ((True, "known"), (False, "other")):
        shares = np.array([100 * fall.share for fall in every if fall.known is known])
        counts = ", ".join(f"{(shares >= least).sum():,} of at least {least:g} %" for least in (given.least, 5, 20))
        print(f"{kind} falls: {counts}")
    return 1 if every else 0


def of_kind(falls: list[Fall], known: bool) -> str:
    """How many falls are known, or are not, and the largest of them."""
    shares = [fall.share for fall in falls if fall.known is known]
    return f"{len(shares):,} | " + (f"{100 * max(shares):.1f} %" if shares else "–")


if __name__ == "__main__":
    sys.exit(main())
