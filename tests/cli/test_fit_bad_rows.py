"""Rows that cannot teach what they seem to: one clear line each, which says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from measured_tables import A100_FILE, GRID, VECTORS, write_table

from rooflight.prediction.fit.refusals import refuse_wrong_unit
from rooflight.prediction.lint.findings import row_bounds
from rooflight.prediction.read import read_file


@pytest.fixture
def refused(run, tmp_path: Path):
    """The line with which a fit refuses the tables under ``data``; it writes nothing."""

    def line(*words: str) -> str:
        code, out, err = run("fit", tmp_path / "data", "--out", tmp_path / "models", *words)
        assert code == 2, err
        assert out == ""
        assert err.count("\n") == 1
        assert not (tmp_path / "models").exists()
        return err

    return line


def scaled(path: Path, factor: float) -> Path:
    """A table whose times are given in another unit than its header says."""
    header, *lines = path.read_text().splitlines()
    rows = [line.rsplit(",", 1) for line in lines]
    path.write_text("\n".join([header, *(f"{shape},{float(time) * factor:.9g}" for shape, time in rows)]) + "\n")
    return path


@pytest.mark.parametrize("on", [(), ("--on", "shipped")])
@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1e-3, "about 1,000 times too short"),
        (1e-6, "about 1,000,000 times too short"),
        (1e3, "about 1,000 times too long"),
    ],
)
def test_times_in_another_unit_are_told_with_the_unit(refused, tmp_path: Path, factor: float, said: str, on):
    scaled(write_table(tmp_path / "data", noise=0.02), factor)
    line = refused(*on)
    assert said in line
    unit = {1e-3: "milliseconds", 1e-6: "seconds", 1e3: "nanoseconds"}[factor]
    assert f"they are probably {unit}, not microseconds" in line
    assert f"{'multiply' if factor < 1 else 'divide'} them by" in line
    assert f"{A100_FILE}_gemm" in line


@pytest.mark.parametrize("factor", [0.3, 0.5, 1.0, 5.0, 30.0])
def test_times_that_are_only_fast_or_slow_are_in_the_right_unit(tmp_path: Path, factor: float):
    """Of large products and of vectors that take no time but a kernel's start; slowdowns of 2 times the factor."""
    for operator, shapes in (("gemm", GRID), ("relu", VECTORS)):
        (table,) = read_file(scaled(write_table(tmp_path / operator, operator, shapes), factor))
        refuse_wrong_unit(table, row_bounds(table))


def test_a_few_kernels_of_microseconds_may_do_next_to_nothing(tmp_path: Path):
    """A bound of a nanosecond and 3 µs taken: 3,000 times the bound, as every tiny kernel."""
    path = write_table(tmp_path, "relu", [(size,) if len(VECTORS[0]) == 1 else (1, size) for size in range(1, 40)])
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *(line.rsplit(",", 1)[0] + ",3.0" for line in lines)]) + "\n")
    (table,) = read_file(path)
    refuse_wrong_unit(table, row_bounds(table))


def test_a_unit_is_not_told_where_the_user_insists(ok, tmp_path: Path):
    scaled(write_table(tmp_path / "data", noise=0.02), 1e3)
    ok("fit", tmp_path / "data", "--out", tmp_path / "models", "--keep-flagged")


@pytest.mark.parametrize("on", [(), ("--on", "shipped")])
def test_rows_of_two_devices_under_one_name(refused, tmp_path: Path, on):
    """The same shapes, half as long on one of them."""
    write_table(tmp_path / "data" / "one", noise=0.02)
    write_table(tmp_path / "data" / "other", noise=0.02, slowdown=4.0)
    line = refused(*on)
    assert f"gemm on A100-SXM4-80GB: {len(set(GRID))} shapes are there several times" in line
    assert "2.0 times apart in the middle: rows of two devices" in line
    assert "fit each alone, or pass --keep-flagged" in line


def test_the_same_rows_twice_are_no_two_devices(ok, tmp_path: Path):
    for name in ("one", "other"):
        write_table(tmp_path / "data" / name, noise=0.05)
    ok("fit", tmp_path / "data", "--out", tmp_path / "models")


@pytest.mark.parametrize("on", [(), ("--on", "shipped")])
def test_rows_of_two_devices_without_a_shape_in_common(refused, tmp_path: Path, on):
    """Every other shape, three times as long: half of the neighbours are log 3 apart."""
    write_table(tmp_path / "data" / "one", shapes=GRID[::2], noise=0.02)
    write_table(tmp_path / "data" / "other", shapes=GRID[1::2], noise=0.02, slowdown=6.0)
    line = refused(*on)
    assert "gemm on A100-SXM4-80GB: times of like shapes fall into two groups, about" in line
    assert "rows of two devices, or of two ways to measure, under one name: fit each alone" in line


def test_a_device_with_two_regimes_is_one_device(ok, tmp_path: Path):
    """Small work is 3 times slower than large work: neighbours differ at the border alone."""
    small = [shape for shape in GRID if np.prod(shape) < 2**29]
    write_table(tmp_path / "data" / "one", shapes=small, noise=0.05, slowdown=6.0)
    write_table(tmp_path / "data" / "other", shapes=sorted(set(GRID) - set(small)), noise=0.05)
    ok("fit", tmp_path / "data", "--out", tmp_path / "models")


def test_two_groups_are_fitted_where_the_user_insists(ok, tmp_path: Path):
    write_table(tmp_path / "data" / "one", shapes=GRID[::2])
    write_table(tmp_path / "data" / "other", shapes=GRID[1::2], slowdown=6.0)
    ok("fit", tmp_path / "data", "--out", tmp_path / "models", "--keep-flagged")


@pytest.mark.parametrize("on", [(), ("--on", "shipped")])
def test_one_time_for_all_shapes_is_told_as_such(refused, tmp_path: Path, on):
    with_one_time(tmp_path / "data", GRID, 100)
    line = refused(*on)
    assert f"{len(GRID)} of {len(GRID)} times of gemm (step) are 100 µs, while their bounds grow from" in line
    assert "such times are not of these shapes: measure them again" in line


def test_small_work_may_take_one_time(ok, tmp_path: Path):
    with_one_time(tmp_path / "data", [shape for shape in GRID if np.prod(shape) < 2**29], 20)
    ok("fit", tmp_path / "data", "--out", tmp_path / "models")


def with_one_time(folder: Path, shapes, time_us: float) -> None:
    """A table of products whose last column is the same in all rows."""
    path = write_table(folder, shapes=shapes)
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *(f"{line.rsplit(',', 1)[0]},{time_us}" for line in lines)]) + "\n")


@pytest.mark.parametrize("on", [(), ("--on", "shipped")])
def test_times_of_a_faster_device_are_told_as_such(refused, tmp_path: Path, on):
    """An A100's products under the name of a T4, of a fifth of its peak."""
    path = write_table(tmp_path / "data", noise=0.02)
    path.rename(path.with_name(path.name.replace(A100_FILE, "T4")))
    line = refused(*on)
    assert f"{len(GRID)} of {len(GRID)} times are faster than light on T4" in line
    assert "were they measured on another device? rooflight lint lists them" in line


def one_shape(folder: Path, count: int = 30) -> Path:
    return write_table(folder, shapes=[GRID[7]] * count, noise=0.02)


def test_rows_of_one_shape_teach_no_other(refused, tmp_path: Path):
    one_shape(tmp_path / "data")
    line = refused()
    assert "all rows of a kind are of one shape or two: sample other shapes" in line
    assert "--on shipped" in line


def test_rows_of_one_shape_beside_others_are_noted(ok, tmp_path: Path):
    one_shape(tmp_path / "data")
    write_table(tmp_path / "data", "relu", VECTORS)
    out = ok("fit", tmp_path / "data", "--out", tmp_path / "models")
    said = " ".join(out.split())
    assert "gemm on A100-SXM4-80GB: 30 times of one shape or two say nothing of others" in said


def test_rows_of_one_shape_are_one_row_on_top_of_other_models(ok, tmp_path: Path):
    """Thirty times of one shape are no surer of others than one: a third of what it was missed by is added."""
    one_shape(tmp_path / "data")
    out = ok("fit", tmp_path / "data", "--on", "shipped", "--out", tmp_path / "models", "--json", "-")
    (added,) = json.loads(out)["added"]
    assert added["how"] in ("scale", "nothing")
    low, high = added["inside"]
    assert np.exp(high - low) > 1.05
