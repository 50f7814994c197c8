"""From measured tables to models: what is learned, what is left out, in one process and in several."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from measured_tables import A100_FILE, GRID, H100_FILE, VECTORS, write_table

from rooflight.prediction.fit import fitting as workers
from rooflight.prediction.fit.experts import LEAST_ROWS
from rooflight.prediction.fit.fitting import Fit, fit, learn_all, read_for_fit
from rooflight.prediction.fit.rows import shown_by
from rooflight.prediction.lint.findings import Rule, lint
from rooflight.prediction.model.files import encode
from rooflight.prediction.read import read
from rooflight.prediction.work.facts import OTHERS_KEY, PRODUCT_KEY

ROW_KEYS = {"aten::gelu", "aten::gelu_backward"}


def keys(learned: Fit) -> set[str]:
    return {model.key for model in learned.models}


def learned_from(*paths: Path, keep_flagged: bool = False, processes: bool = False) -> Fit:
    files = read_for_fit(paths, keep_flagged=keep_flagged, processes=processes)
    return learn_all((each for file in files for each in file.shown), processes=processes)


def test_a_constant_slowdown_is_learned(tmp_path: Path):
    (found,) = fit(read(write_table(tmp_path, slowdown=2.0))).models
    (expert,) = found.experts
    assert (found.key, expert.device, expert.rows) == (PRODUCT_KEY, "A100-SXM4-80GB", len(GRID))
    assert expert.error < 1e-3
    assert expert.inside == pytest.approx((0, 0), abs=1e-3)


def test_both_directions_teach_their_own_kind(tmp_path: Path):
    found = fit(read(write_table(tmp_path, "gelu_rows", VECTORS)))
    assert keys(found) - {OTHERS_KEY} == ROW_KEYS
    assert {model.rows for model in found.models if model.key in ROW_KEYS} == {len(VECTORS)}
    assert found.few == {}


def test_what_ops_have_in_common_is_learned_of_those_that_have_no_sizes_of_their_own(tmp_path: Path):
    assert OTHERS_KEY not in keys(fit(read(write_table(tmp_path / "products"))))
    found = fit(read(write_table(tmp_path / "rows", "gelu_rows", VECTORS, slowdown=1.5)))
    (others,) = (model for model in found.models if model.key == OTHERS_KEY)
    assert others.rows == 2 * len(VECTORS)
    assert others.devices == ("A100-SXM4-80GB",)
    assert others.unseen[0] <= 0 <= others.unseen[1]


def test_files_of_one_kind_and_device_teach_one_expert_and_devices_one_each(tmp_path: Path):
    one, other = GRID[::2], GRID[1::2]
    a, b = write_table(tmp_path / "a", shapes=one), write_table(tmp_path / "b", shapes=other)
    c = write_table(tmp_path / "c", shapes=GRID, device=H100_FILE, slowdown=3.0)
    d = write_table(tmp_path / "d", "batched_mm", [(4, 512, 512, k) for k in range(64, 64 * 65, 64)])
    (found,) = (model for model in learned_from(c, a, b, d).models if model.key == PRODUCT_KEY)
    assert {expert.device: expert.rows for expert in found.experts} == {
        "A100-SXM4-80GB": len(GRID) + 2 * 64,  # forward and backward
        "H100-SXM5-80GB": len(GRID),
    }
    # predicted from one another, 2 and 3 times the bound are log 1.5 apart, and two devices leave a doubt
    apart = np.hypot(np.log(1.5), 0.6 / 2**0.5)
    assert found.unseen == pytest.approx((-apart, apart), abs=0.1)


def test_precisions_teach_one_expert(tmp_path: Path):
    half = write_table(tmp_path, slowdown=2.0)
    single = write_table(tmp_path, slowdown=1.2, precision="fp32")
    (found,) = learned_from(half, single).models
    (expert,) = found.experts
    assert expert.rows == 2 * len(GRID)
    assert expert.error < 0.01  # and tells them apart


def test_too_few_rows_are_counted_not_learned(tmp_path: Path):
    few = LEAST_ROWS - 1
    found = fit(read(write_table(tmp_path / "a", shapes=GRID[:few])))
    assert found.models == ()
    assert found.few == {f"{PRODUCT_KEY} on A100-SXM4-80GB": few}
    write_table(tmp_path / "a", shapes=GRID, device=H100_FILE)
    found = fit(read(tmp_path / "a"))
    assert found.models[0].devices == ("H100-SXM5-80GB",)
    assert found.few == {f"{PRODUCT_KEY} on A100-SXM4-80GB": few}
    assert fit([]) == Fit(models=(), few={})


def test_rows_of_two_files_may_be_enough_together(tmp_path: Path):
    parts = [write_table(tmp_path / name, shapes=GRID[start::8]) for start, name in enumerate("abcdefgh")]
    assert len(GRID) // 8 < LEAST_ROWS
    assert learned_from(*parts).models[0].rows == len(GRID)


def spoiled(folder: Path) -> Path:
    """A table of which one time is far faster than light."""
    path = write_table(folder)
    lines = path.read_text().splitlines()
    lines[5] = ",".join([*lines[5].split(",")[:3], "0.0001"])
    path.write_text("\n".join(lines) + "\n")
    return path


def test_flagged_times_teach_nothing(tmp_path: Path):
    path = spoiled(tmp_path)
    tables = read(path)
    findings = lint(tables)
    assert {finding.line for finding in findings} == {6}
    for found in (fit(tables, findings), learned_from(path)):
        assert found.models[0].rows == len(GRID) - 1
        assert found.models[0].error < 1e-3
    (file,) = read_for_fit([path])
    assert file.findings == findings


def test_kept_times_that_beat_light_count_as_a_little_faster_than_the_bound(tmp_path: Path):
    path = spoiled(tmp_path)
    for found in (fit(read(path)), learned_from(path, keep_flagged=True)):
        assert found.models[0].rows == len(GRID)
    (shown,) = read_for_fit([path], keep_flagged=True)[0].shown
    assert sorted(shown.slowdown)[:2] == pytest.approx([-1, np.log(2)])


def test_a_column_that_is_mostly_impossible_teaches_nothing_at_all(tmp_path: Path):
    """Twelve of its rows could be true, were the others not beside them."""
    (table,) = read(write_table(tmp_path, "gelu_rows", VECTORS))
    impossible = table.seconds.copy()
    impossible[12:, 1] *= 1e-3
    table = replace(table, seconds=impossible)
    findings = lint([table])
    assert [each.direction for each in findings if each.rule is Rule.UNUSABLE_COLUMN] == ["bwd"]
    (forward,) = fit([table], findings).models[1:]
    assert (forward.key, forward.rows) == ("aten::gelu", len(VECTORS))


def test_times_that_are_missing_in_one_direction_teach_the_other(tmp_path: Path):
    (table,) = read(write_table(tmp_path, "gelu_rows", VECTORS))
    seconds = table.seconds.copy()
    seconds[3:, 1] = np.nan
    found = {each.key: len(each.facts) for each in shown_by(replace(table, seconds=seconds))}
    assert found == {"aten::gelu": len(VECTORS), "aten::gelu_backward": 3}


def test_collectives_of_a_kind_teach_one_expert_whatever_the_topology(tmp_path: Path):
    sizes = [2**power for power in range(16, 28)]
    shapes = [(size, nodes, ranks) for size in sizes for nodes, ranks in ((1, 2), (1, 4), (1, 8), (2, 8))]
    write_table(tmp_path, "all_reduce", shapes, slowdown=1.5)
    (found,) = fit(read(tmp_path)).models
    assert (found.key, found.devices, found.rows) == ("all-reduce", ("A100-SXM4-80GB",), len(shapes))
    assert found.error < 1e-3


def test_unknown_operators_are_passed_over(tmp_path: Path):
    (tmp_path / f"{A100_FILE}_nobody_knows_fp16.csv").write_text(
        "width,dur(us)\n" + "".join(f"{size},{size}\n" for size in range(1000, 1100))
    )
    tables = read(tmp_path)
    assert [table.known for table in tables] == [False]
    assert fit(tables) == Fit(models=(), few={})
    assert all(file.shown == () for file in read_for_fit(tuple(tmp_path.iterdir())))


def test_shapes_that_cannot_be_are_passed_over(tmp_path: Path):
    path = write_table(tmp_path)
    path.write_text(path.read_text() + "0,8,8,10\n")
    (shown,) = shown_by(read(path)[0])
    assert len(shown.facts) == len(GRID)


def test_progress_is_told(tmp_path: Path):
    said: list[str] = []
    read_for_fit([write_table(tmp_path)], progress=said.append)
    assert said == ["read and checked 1 of 1 file"]
    fit(read(tmp_path), progress=said.append)
    assert f"learned 1 of 1: {PRODUCT_KEY} on A100-SXM4-80GB, {len(GRID)} times" in said


def bytes_of(learned: Fit) -> list[bytes]:
    return [encode(model) for model in learned.models]


def test_several_processes_learn_what_one_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_table(tmp_path, noise=0.1, shapes=GRID[::2])
    write_table(tmp_path, noise=0.1, shapes=GRID[::2], device=H100_FILE)
    write_table(tmp_path, "relu", VECTORS, noise=0.1)
    paths = sorted(tmp_path.iterdir())
    alone = bytes_of(learned_from(*paths))
    assert len(alone) >= 2
    monkeypatch.setattr(workers, "_MANY_ROWS", 1)
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    started: list[object] = []

    class Pool(workers.ProcessPoolExecutor):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)
    assert bytes_of(learned_from(*paths)) == alone
    assert not started  # a library must not run its user's script once more
    threads = {name: os.environ.get(name) for name in workers._THREADS}
    assert bytes_of(learned_from(*paths, processes=True)) == alone
    assert len(started) == 2  # one reads, one learns
    assert {name: os.environ.get(name) for name in workers._THREADS} == threads


def test_a_bad_file_is_one_line_from_another_process_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    good, bad = write_table(tmp_path / "a"), write_table(tmp_path / "b")
    bad.write_text(bad.read_text().replace("512", "half", 1))
    with pytest.raises(ValueError, match=r"line \d+: \w is \"half\"") as alone:
        read_for_fit([good, bad])
    monkeypatch.setattr(workers, "_MANY_ROWS", 1)
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(ValueError, match="half") as apart:
        read_for_fit([good, bad], processes=True)
    assert str(apart.value) == str(alone.value)
