"""Rows that cannot teach what they seem to: one clear line each, which says what to do."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from measured_tables import A100_FILE, GRID, VECTORS, write_table

from rooflight.prediction.fit.refusals import refuse_wrong_unit
from rooflight.prediction.lint.findings import row_bounds
from rooflight.prediction.read import read_file

UNITS = {1e-3: ("short", 1_000, "milli"), 1e-6: ("short", 1_000_000, ""), 1e3: ("long", 1_000, "nano")}
SMALL = [shape for shape in GRID if np.prod(shape) < 2**29]


def changed(path: Path, time_of) -> Path:
    """A table with other times: ``time_of`` the old ones."""
    header, *lines = path.read_text().splitlines()
    rows = [line.rsplit(",", 1) for line in lines]
    path.write_text("\n".join([header, *(f"{shape},{time_of(float(time)):.9g}" for shape, time in rows)]) + "\n")
    return path


def in_another_unit(folder: Path, factor: float) -> None:
    changed(write_table(folder, noise=0.02), lambda time: time * factor)


def two(folder: Path, one: dict, other: dict) -> None:
    """Two tables of one device and operator."""
    write_table(folder / "one", **one)
    write_table(folder / "other", **other)


def of_another_device(folder: Path) -> None:
    """An A100's products under the name of a T4, of a fifth of its peak."""
    path = write_table(folder, noise=0.02)
    path.rename(path.with_name(path.name.replace(A100_FILE, "T4")))


def with_one_time(folder: Path, shapes, time_us: float) -> None:
    changed(write_table(folder, shapes=shapes), lambda _: time_us)


def of_one_shape(folder: Path) -> None:
    write_table(folder, shapes=[GRID[7]] * 30, noise=0.02)


HALVES = {"shapes": GRID[::2]}, {"shapes": GRID[1::2], "slowdown": 6.0}
BAD = {
    "the same shapes, half as long on another device": (
        lambda folder: two(folder, {"noise": 0.02}, {"noise": 0.02, "slowdown": 4.0}),
        f"gemm on A100-SXM4-80GB: {len(set(GRID))} shapes are there several times",
        "2.0 times apart in the middle: rows of two devices",
        "fit each alone, or pass --keep-flagged",
    ),
    "every other shape three times as long: half of the neighbours are log 3 apart": (
        lambda folder: two(folder, *({**half, "noise": 0.02} for half in HALVES)),
        "gemm on A100-SXM4-80GB: times of like shapes fall into two groups, about",
        "rows of two devices, or of two ways to measure, under one name: fit each alone",
    ),
    "one time for all shapes": (
        lambda folder: with_one_time(folder, GRID, 100),
        f"{len(GRID)} of {len(GRID)} times of gemm (step) are 100 µs, while their bounds grow from",
        "such times are not of these shapes: measure them again",
    ),
    "a faster device": (
        of_another_device,
        f"{len(GRID)} of {len(GRID)} times are faster than light on T4",
        "were they measured on another device? rooflight lint lists them",
    ),
    **{
        f"times {factor:g} times as long": (
            partial(in_another_unit, factor=factor),
            f"about {by:,} times too {wrong}",
            f"they are probably {unit}seconds, not microseconds",
            f"{'multiply' if factor < 1 else 'divide'} them by",
            f"{A100_FILE}_gemm",
        )
        for factor, (wrong, by, unit) in UNITS.items()
    },
}


@pytest.mark.parametrize("on", [(), ("--on", "shipped")])
@pytest.mark.parametrize("case", BAD)
def test_rows_that_cannot_be_are_told_with_what_to_do(refused, tmp_path: Path, case: str, on):
    write, *said = BAD[case]
    write(tmp_path / "data")
    line = refused("fit", tmp_path / "data", "--out", tmp_path / "models", *on)
    assert [text for text in said if text not in line] == []
    assert not (tmp_path / "models").exists()


def test_rows_of_one_shape_teach_no_other(refused, tmp_path: Path):
    of_one_shape(tmp_path / "data")
    line = refused("fit", tmp_path / "data", "--out", tmp_path / "models")
    assert "all rows of a kind are of one shape or two: sample other shapes" in line
    assert "--on shipped" in line
    assert not (tmp_path / "models").exists()


INSISTED = ("--keep-flagged",)
GOOD = {
    "another unit, as the user insists": (partial(in_another_unit, factor=1e3), INSISTED),
    "two groups, as the user insists": (lambda folder: two(folder, *HALVES), INSISTED),
    "the same rows twice": (lambda folder: two(folder, {"noise": 0.05}, {"noise": 0.05}), ()),
    # neighbours differ at the border alone
    "small work 3 times slower than large": (
        lambda folder: two(folder, {"shapes": SMALL, "noise": 0.05, "slowdown": 6.0},
                           {"shapes": sorted(set(GRID) - set(SMALL)), "noise": 0.05}),
        (),
    ),
    "one time of small work": (lambda folder: with_one_time(folder, SMALL, 20), ()),
}  # fmt: skip


@pytest.mark.parametrize("case", GOOD)
def test_rows_that_can_be_are_fitted(ok, tmp_path: Path, case: str):
    write, words = GOOD[case]
    write(tmp_path / "data")
    ok("fit", tmp_path / "data", "--out", tmp_path / "models", *words)


@pytest.mark.parametrize("factor", [0.3, 0.5, 1.0, 5.0, 30.0])
def test_times_that_are_only_fast_or_slow_are_in_the_right_unit(tmp_path: Path, factor: float):
    """Of large products and of vectors that take no time but a kernel's start; slowdowns of 2 times the factor."""
    for operator, shapes in (("gemm", GRID), ("relu", VECTORS)):
        path = write_table(tmp_path / operator, operator, shapes)
        (table,) = read_file(changed(path, lambda time: time * factor))
        refuse_wrong_unit(table, row_bounds(table))


def test_a_few_kernels_of_microseconds_may_do_next_to_nothing(tmp_path: Path):
    """A bound of a nanosecond and 3 µs taken: 3,000 times the bound, as every tiny kernel."""
    path = write_table(tmp_path, "relu", [(1, size) for size in range(1, 40)])
    (table,) = read_file(changed(path, lambda _: 3.0))
    refuse_wrong_unit(table, row_bounds(table))


def test_rows_of_one_shape_beside_others_are_noted(ok, tmp_path: Path):
    of_one_shape(tmp_path / "data")
    write_table(tmp_path / "data", "relu", VECTORS)
    said = " ".join(ok("fit", tmp_path / "data", "--out", tmp_path / "models").split())
    assert "gemm on A100-SXM4-80GB: 30 times of one shape or two say nothing of others" in said


def test_rows_of_one_shape_are_one_row_on_top_of_other_models(as_json, tmp_path: Path):
    """Thirty times of one shape are no surer of others than one: a third of what it was missed by is added."""
    of_one_shape(tmp_path / "data")
    (added,) = as_json("fit", tmp_path / "data", "--on", "shipped", "--out", tmp_path / "models")["added"]
    assert added["how"] in ("scale", "nothing")
    low, high = added["inside"]
    assert np.exp(high - low) > 1.05
