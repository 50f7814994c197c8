"""Rules of lint: what is flagged, what is said of it, and what is only counted."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from handmade_models import A100
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rooflight import devices
from rooflight.cli.main import app
from rooflight.costs.operators import registry
from rooflight.prediction.lint.findings import Rule, beats_bound, beats_note, lint, lint_table, row_bounds
from rooflight.prediction.read import read
from rooflight.prediction.read.measured import MeasuredTable

GRID = tuple(product((1, 2, 4), (2, 4, 8), (1024, 2048, 3072, 4096), (2048, 4096, 6144)))
GATHER = tuple((size, 1, 4) for size in range(1 << 24, 1 << 27, 1 << 20))


def table_of(operator, shapes, efficiency=0.5, device=A100):
    """Times that are the bound over an efficiency."""
    known = registry.find(operator)
    table = MeasuredTable(
        operator=operator,
        kernel=operator,
        device=device,
        precision="fp16",
        parameters=known.parameters,
        shapes=np.array(shapes),
        seconds=np.ones((len(shapes), len(known.directions))),
        directions=known.directions,
        source=Path(f"{operator}.csv"),
        lines=np.arange(2, len(shapes) + 2),
    )
    return replace(table, seconds=row_bounds(table).bound_s / efficiency)


def changed(table, row, direction, factor):
    seconds = table.seconds.copy()
    seconds[row, direction] *= factor
    return replace(table, seconds=seconds)


def rules(findings, row):
    return {finding.rule for finding in findings if finding.row == row}


LINEAR = table_of("linear1", GRID)


def test_the_bounds_of_a_row():
    table = table_of("linear1", [(1, 2, 1024, 2048)])
    bounds = row_bounds(table)
    # 2 * 2048 tokens * 2048 inputs * 6144 outputs / 312 TFLOP/s = 165.2 µs
    assert bounds.bound_s[0, 0] == pytest.approx(2 * 2048 * 2048 * 6144 / 312e12)
    assert bounds.floor_s[0, 0] == bounds.bound_s[0, 0]
    copy = row_bounds(table_of("copy", [(1 << 20,)]))
    assert copy.bound_s[0, 0] > 0
    # 2 MiB are read from the cache, which reads 5120 bytes a clock, and as many written to it
    assert copy.floor_s[0, 0] == pytest.approx(2 * 2**20 / (5120 * 1.41e9))
    hopper = row_bounds(table_of("linear1", [(1, 2, 1024, 2048)], device=devices.get("H100-SXM5-80GB")))
    assert hopper.floor_s[0, 0] == pytest.approx(hopper.bound_s[0, 0] * 1830 / 1980)


def test_the_bounds_of_collectives():
    one_node = row_bounds(table_of("all_gather", [(1 << 20, 1, 4)]))
    assert one_node.floor_s[0, 0] == pytest.approx(3 * 2**21 / 300e9)  # three others' 2 MiB over NVLink
    between = row_bounds(table_of("all_gather", [(1 << 20, 4, 1)]))
    assert between.floor_s[0, 0] == pytest.approx(3 * 2**21 / 100e9)
    shared = row_bounds(table_of("all_reduce", [(1 << 20, 2, 4)]))
    assert shared.floor_s[0, 0] == pytest.approx(2**21 / 4 / 100e9)  # a node's sum over its four ports
    assert row_bounds(table_of("p2p", [(1 << 20, 1, 1)])).floor_s[0, 0] == 0


def test_convolutions_may_take_fewer_products_than_the_direct_ones():
    shape = (64, 512, 32, 32, 512, 3, 1, 1, 1)
    bounds = row_bounds(table_of("conv2d", [shape, (*shape[:5], 1, 1, 0, 1)]))
    # 2 * 64 * 512 * 32 * 32 results * 512 channels * 9 taps / 312 TFLOP/s, of which FFT needs 1.5 of 9
    assert bounds.bound_s[0, 0] == pytest.approx(2 * 64 * 512 * 32 * 32 * 512 * 9 / 312e12)
    assert bounds.floor_s[0, 0] == pytest.approx(bounds.bound_s[0, 0] * 1.5 / 9)
    assert bounds.floor_s[1, 0] == bounds.bound_s[1, 0]  # nothing to save on one tap


def test_an_honest_table_is_left_alone():
    assert lint([LINEAR, table_of("all_gather", GATHER), table_of("flash_atten", [(1, 4, 16, 1024, 2048)])]) == ()


def test_faster_than_light_and_its_evidence():
    findings = lint_table(changed(LINEAR, 40, 1, 0.25))  # efficiency 0.5 / 0.25 = 2
    assert {finding.row for finding in findings} == {40}
    first = next(finding for finding in findings if finding.rule is Rule.FASTER_THAN_LIGHT)
    assert (first.line, first.direction) == (42, "bwd")
    assert first.factor == pytest.approx(2, rel=0.05)  # some of the bias' gradient may stay in the cache
    assert " times): mp=" in first.evidence
    assert "µs" in first.evidence or "ms" in first.evidence


@pytest.mark.parametrize("factor", [1 / 1.9, 1.9])
def test_what_is_not_far_off_is_no_finding(factor):
    assert lint_table(changed(LINEAR, 40, 0, factor)) == ()


@pytest.mark.parametrize("factor", [0.45, 2.5])
@pytest.mark.parametrize("row", [0, 40, len(GRID) - 1])
def test_outliers_in_the_middle_and_in_corners(row, factor):
    slow = table_of("linear1", GRID, efficiency=0.2)
    findings = lint_table(changed(slow, row, 0, factor))
    assert Rule.OUTLIER in rules(findings, row)
    assert {finding.row for finding in findings} == {row}  # neighbours are not accused
    evidence = next(finding.evidence for finding in findings if finding.rule is Rule.OUTLIER)
    assert ("slower" if factor > 1 else "faster") in evidence


def test_neighbours_of_shapes_drawn_at_random_say_nothing_of_what_is_far_from_them():
    # a launch of 25 µs, then bandwidth; in rows of two sizes: 186 and 187 wide, and many times wider
    shapes = [(4171, width, 0) for width in (3, 4, 186, 187, 3957)] + [(9, width, 0) for width in (30, 31, 4000)]
    table = table_of("mul", shapes, efficiency=0.8)
    noise = np.exp(np.random.default_rng(3).normal(0, 0.03, (len(shapes), 1)))
    assert lint_table(replace(table, seconds=np.maximum(25e-6, table.seconds) * noise)) == ()
    # the least sizes of a collective take a fixed time
    table = table_of("all_reduce", [(1024 + 4096 * step, 1, 4) for step in range(200)])
    assert lint_table(replace(table, seconds=np.maximum(30e-6, table.seconds))) == ()


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("sizes", [range(1 << 20, 1 << 24, 1 << 20), [1 << power for power in range(16, 28)]])
def test_collectives_of_one_topology_are_not_slow_or_fast_beside_those_of_another(ranks: int, sizes: Sequence[int]):
    shapes = [(size, nodes, ranks) for nodes in (1, 2) for size in sizes]
    table = table_of("all_reduce", shapes)
    slow_network = np.where(table.shapes[:, 1:2] == 2, 20.0, 1.0)
    assert lint_table(replace(table, seconds=table.seconds * slow_network)) == ()


def test_too_slow_where_many_are():
    slow = LINEAR
    for row in range(0, len(GRID), 5):
        slow = changed(slow, row, 0, 1000)
    findings = lint_table(slow)
    assert {finding.row for finding in findings if finding.rule is Rule.TOO_SLOW} == set(range(0, len(GRID), 5))
    assert {finding.row for finding in findings} == set(range(0, len(GRID), 5))


def test_times_that_stay_the_same_until_they_beat_light():
    shapes = [(1, dim, 4) for dim in range(1024, 8193, 1024)]
    flat = replace(table_of("lastStage_optimizer", shapes), seconds=np.full((len(shapes), 1), 10e-3))
    findings = lint_table(flat)
    assert {finding.row for finding in findings if finding.rule is Rule.CONSTANT} == set(range(len(shapes)))
    assert "all along dim" in next(finding.evidence for finding in findings if finding.rule is Rule.CONSTANT)
    overhead = replace(flat, seconds=np.full((len(shapes), 1), 1.0))
    assert Rule.CONSTANT not in {finding.rule for finding in lint_table(overhead)}


def test_a_row_below_its_smaller_neighbours():
    slow = table_of("linear1", GRID, efficiency=0.05)
    findings = lint_table(changed(slow, 40, 0, 0.1))
    assert Rule.NON_MONOTONE in rules(findings, 40)


def test_a_backward_that_is_much_too_fast():
    slow = table_of("linear1", GRID, efficiency=0.05)
    quick = replace(slow, seconds=slow.seconds * np.array([1, 0.1]))  # twice the work at ten times the efficiency
    findings = lint_table(quick)
    assert Counter(finding.rule for finding in findings) == {Rule.FAST_BACKWARD: len(GRID), Rule.UNUSABLE_COLUMN: 1}
    assert all(finding.direction == "bwd" for finding in findings)


def test_two_modes():
    seconds = table_of("all_gather", GATHER).seconds
    slow = np.arange(len(GATHER)) % 9 == 4
    seconds[slow] *= 5
    findings = lint_table(replace(table_of("all_gather", GATHER), seconds=seconds))
    assert {finding.row for finding in findings} == set(np.flatnonzero(slow))
    assert {finding.rule for finding in findings} == {Rule.BIMODAL}


def test_copied_columns_are_a_finding_of_no_row():
    copy = replace(LINEAR, seconds=LINEAR.seconds[:, [1, 1]])
    (finding,) = lint_table(copy)
    assert (finding.rule, finding.row, finding.line) == (Rule.DUPLICATE_COLUMN, None, None)
    assert "identical in every row" in finding.evidence
    partly = np.where(np.arange(len(GRID))[:, None] % 4 == 0, LINEAR.seconds[:, [1, 1]], LINEAR.seconds)
    (finding,) = lint_table(replace(LINEAR, seconds=partly))
    assert "within 1 % in 25.0% of the rows" in finding.evidence


def test_a_description_that_does_not_fit_the_device_and_what_is_not_known():
    (finding,) = lint_table(table_of("middleStage_optimizer", [(1, 20480, 12)]))
    assert (finding.rule, finding.row) == (Rule.LARGER_THAN_MEMORY, None)
    assert lint_table(replace(LINEAR, operator="nobody", kernel="nobody", known=False)) == ()
    refused = table_of("linear1", [(3, 2, 1024, 2048)] * 12)  # 2048 is no multiple of 3
    assert lint_table(replace(refused, seconds=np.ones((12, 2)) * [1, 2])) == ()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), efficiency=st.floats(0.05, 0.85), kept=st.floats(0.4, 1), backward=st.floats(0.6, 1)
)
def test_constant_efficiency_with_noise_is_never_flagged(seed, efficiency, kept, backward):
    rng = np.random.default_rng(seed)
    noisy = LINEAR.seconds * 0.5 / efficiency * [1, backward] * np.exp(rng.normal(0, 0.03, LINEAR.seconds.shape))
    table = replace(LINEAR, seconds=np.maximum(noisy, row_bounds(LINEAR).bound_s)).subset(rng.random(len(GRID)) < kept)
    assert [finding for finding in lint_table(table) if finding.row is not None] == []


@settings(max_examples=25, deadline=None)
@given(row=st.integers(0, len(GRID) - 1), direction=st.integers(0, 1), seed=st.integers(0, 2**32 - 1))
def test_three_times_as_fast_as_light_is_always_flagged(row, direction, seed):
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.03, LINEAR.seconds.shape))
    seconds = LINEAR.seconds * noise
    seconds[row, direction] = row_bounds(LINEAR).bound_s[row, direction] / 3
    assert Rule.FASTER_THAN_LIGHT in rules(lint_table(replace(LINEAR, seconds=seconds)), row)


def write(folder, bad):
    lines = ["mp,b,l,dim,F_dur(us),B_dur(us)"]
    for number, (shape, times) in enumerate(zip(GRID, LINEAR.seconds * 1e6, strict=True)):
        scale = 0.1 if bad and number == 7 else 1
        lines.append(",".join(map(str, (*shape, times[0] * scale, times[1]))))
    (folder / "NVIDIAA100-SXM4-80GB_linear1_fp16.csv").write_text("\n".join(lines))
    return folder


def test_the_command(tmp_path):
    def linted(*words):
        return CliRunner().invoke(app, ["lint", *map(str, words)])

    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, bad=name == "bad")
    (file,) = (tmp_path / "bad").iterdir()
    found = linted(tmp_path / "bad", "--json", "-")
    assert found.exit_code == 1
    data = json.loads(found.stdout)
    assert data["schema"] == "rooflight.lint/1"
    assert {finding["line"] for finding in data["findings"]} == {9}
    assert data["tables"][0]["flagged"] == 1
    assert "faster than light" in linted(tmp_path / "bad", "--markdown", "-").stdout
    fine = linted(tmp_path / "good")
    assert fine.exit_code == 0
    assert "No row was found to be wrong" in fine.stdout
    # several files and folders are checked once each
    data = json.loads(linted(tmp_path / "good", tmp_path / "bad", file, "--json", "-").stdout)
    assert [Path(table["file"]).parent.name for table in data["tables"]] == ["good", "bad"]
    assert {finding["file"] for finding in data["findings"]} == {str(file)}
    (tmp_path / "empty").mkdir()
    empty = tmp_path / "empty"
    for words in (["nowhere"], [empty], [empty, "--json", "-", "--markdown", "-"], ["x", "--top", "0"]):
        assert isinstance(linted(*words).exception, ValueError)


KNOWN_BAD = {  # SOURCE.md
    *("NVIDIAGH200120GB_flash_atten_fp16", "NVIDIAGH200120GB_firstStage_optimizer_fp16"),
    *("NVIDIAA100-SXM4-80GB_linear2_fp16", "NVIDIAA100-SXM4-80GB_res_add_fp16", "NVIDIAGH200120GB_res_add_fp16"),
}
FOUND_BAD = {  # docs/lab/lint_findings.md: rows that the device cannot have run in their time
    *("NVIDIAGH200120GB_middleStage_optimizer_fp16", "NVIDIAGH200120GB_lastStage_optimizer_fp16"),
    "NVIDIAGH200120GB_parallel_cross_entropy_128_fp16",
}


@pytest.mark.skipif("ROOFLIGHT_DATA" not in os.environ, reason="ROOFLIGHT_DATA is not set")
def test_the_measured_tables():
    data = read(Path(os.environ["ROOFLIGHT_DATA"]) / "estimate-train-time")
    findings = lint(data)
    rows = {table.source.stem: {f.row for f in findings if f.source == table.source} - {None} for table in data}
    tables = {table.source.stem: table for table in data}

    flash = [f for f in findings if f.source.stem == "NVIDIAGH200120GB_flash_atten_fp16" and f.direction == "bwd"]
    assert sum(f.rule is Rule.FASTER_THAN_LIGHT for f in flash) >= 3100
    for ways in ("4_1", "8_1"):
        name = f"NVIDIAGH200120GB_allgather_large_fp16_{ways}"
        over = tables[name].shapes[:, 0] * 2 / tables[name].seconds[:, 0] > 100e9  # as SOURCE.md counts them
        assert over.sum() > 0
        assert set(np.flatnonzero(over)) <= rows[name]
    slow = "NVIDIAGH200120GB_firstStage_optimizer_fp16"
    assert set(np.flatnonzero(tables[slow].seconds[:, 0] > 1)) <= rows[slow]
    assert "NVIDIAA100-SXM4-80GB_allgather_large_fp16_1_4" in {
        f.source.stem for f in findings if f.rule is Rule.BIMODAL
    }
    copies = {f.source.stem for f in findings if f.rule is Rule.DUPLICATE_COLUMN}
    assert {"NVIDIAA100-SXM4-80GB_res_add_fp16", "NVIDIAGH200120GB_res_add_fp16"} <= copies

    operators = {name for name, table in tables.items() if table.source.parent.name == "operator"}
    for name in operators - KNOWN_BAD - FOUND_BAD:
        assert len(rows[name]) < 0.01 * len(tables[name]), name


def table(operator: str, shapes: list[list[int]], share: float) -> MeasuredTable:
    """Rows on an A100 in half precision that take a share of their bounds, forward."""
    whole = table_of(operator, shapes, efficiency=1 / share)
    return replace(whole, seconds=whole.seconds[:, :1], directions=whole.directions[:1])


ADDS = [[rows, 4096, 0] for rows in (512, 777, 1024)]  # 12 to 25 MB: the A100's cache has 40 MiB


def test_times_below_the_bound_are_counted_unless_they_are_flagged():
    measured = table("add", ADDS, 0.9)
    bounds, place = row_bounds(measured), (measured.source, "add", 3, measured.directions[0])
    assert beats_bound(measured, bounds, frozenset()) == 3
    assert beats_bound(measured, bounds, frozenset([place])) == 2
    assert beats_bound(measured, bounds, frozenset([(*place[:2], None, place[3])])) == 0
    assert beats_bound(table("add", ADDS, 1.1), bounds, frozenset()) == 0
    assert beats_note(0) == ""
    assert beats_note(1202).startswith("1,202 times are faster than the bound without being flagged: ")
