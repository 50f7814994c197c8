"""Models from measured tables: what is learned, what is left out, and what is said of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import op, spec
from measured_tables import A100_FILE, GRID, H100_FILE, VECTORS, write_table
from sessions import Call, session_of

import rooflight as rl
from rooflight.devices import get
from rooflight.hardware.devices.spec import Roofs
from rooflight.prediction.fit import fitting as workers
from rooflight.prediction.fit.experts import LEAST_ROWS
from rooflight.prediction.fit.fitting import Fit, fit, learn_all, read_for_fit
from rooflight.prediction.fit.refusals import groups_apart, refuse_two_groups
from rooflight.prediction.fit.rows import Shown, launch_inside_s, shown_by
from rooflight.prediction.fit.tables import report_of
from rooflight.prediction.lint.findings import Finding, Rule, lint
from rooflight.prediction.model.files import decode, encode
from rooflight.prediction.predictor import Predictor
from rooflight.prediction.read import read
from rooflight.prediction.work.facts import OTHERS_KEY, PRODUCT_KEY, facts_of
from rooflight.prediction.work.floors import SHORTEST_KERNEL_S, without_launch

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


def test_precisions_teach_one_expert_and_rows_of_several_files_may_be_enough_together(tmp_path: Path):
    half = write_table(tmp_path, slowdown=2.0)
    single = write_table(tmp_path, slowdown=1.2, precision="fp32")
    (found,) = learned_from(half, single).models
    (expert,) = found.experts
    assert expert.rows == 2 * len(GRID)
    assert expert.error < 0.01  # and tells them apart
    parts = [write_table(tmp_path / name, shapes=GRID[start::8]) for start, name in enumerate("abcdefgh")]
    assert len(GRID) // 8 < LEAST_ROWS
    assert learned_from(*parts).models[0].rows == len(GRID)


def test_flagged_times_teach_nothing_and_kept_ones_count_as_a_little_faster_than_the_bound(tmp_path: Path):
    path = write_table(tmp_path)
    lines = path.read_text().splitlines()
    lines[5] = ",".join([*lines[5].split(",")[:3], "0.0001"])
    path.write_text("\n".join(lines) + "\n")
    tables = read(path)
    findings = lint(tables)
    assert {finding.line for finding in findings} == {6}
    for found in (fit(tables, findings), learned_from(path)):
        assert found.models[0].rows == len(GRID) - 1
        assert found.models[0].error < 1e-3
    (file,) = read_for_fit([path])
    assert file.findings == findings
    for found in (fit(tables), learned_from(path, keep_flagged=True)):
        assert found.models[0].rows == len(GRID)
    (shown,) = read_for_fit([path], keep_flagged=True)[0].shown
    assert sorted(shown.slowdown)[:2] == pytest.approx([-1, np.log(2)])


def test_a_column_that_is_mostly_impossible_or_missing_leaves_the_other_to_teach(tmp_path: Path):
    """Twelve of its rows could be true, were the others not beside them."""
    (table,) = read(write_table(tmp_path, "gelu_rows", VECTORS))
    seconds = table.seconds.copy()
    seconds[12:, 1] *= 1e-3
    impossible = replace(table, seconds=seconds)
    findings = lint([impossible])
    assert [each.direction for each in findings if each.rule is Rule.UNUSABLE_COLUMN] == ["bwd"]
    (forward,) = fit([impossible], findings).models[1:]
    assert (forward.key, forward.rows) == ("aten::gelu", len(VECTORS))
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


def test_messages_that_take_as_long_as_twice_of_them_are_not_taken_for_two_devices(tmp_path: Path):
    """10 us, and a GB in 5 ms: over its bound, a message of half the size takes twice as long, as if on another GPU."""
    sizes = [2**power for power in range(8, 29)]
    lines = [f"{size},1,{ranks},{10 + 2 * size * ranks / 2e5}" for ranks in (2, 4, 8) for size in sizes]
    text = "\n".join(["elements,nodes,gpus_per_node,dur(us)", *lines])
    (tmp_path / f"{A100_FILE}_all_gather_fp16.csv").write_text(text + "\n")
    (shown,) = (each for file in read_for_fit(tuple(tmp_path.iterdir())) for each in file.shown)
    share, _ = groups_apart(shown)
    assert share < 0.1
    refuse_two_groups([shown])


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


PROGRAM = """
import time
from rooflight.prediction.fit.fitting import workers
with workers(1e9, True) as run:
    jobs = run(time.sleep, [400.0, 400.0])
    print("started", flush=True)
    list(jobs)
"""


@pytest.mark.parametrize("after_s", [0.1, 1.5], ids=["while they import", "at work"])
def test_workers_end_at_ctrl_c(after_s):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert errors.count(b"Traceback") == 1  # of the program itself, which catches nothing


@pytest.mark.parametrize(
    ("calibrated", "rule", "count", "said"),
    [
        (True, Rule.FASTER_THAN_LIGHT, 1, True),  # 1 of 64 is more than a hundredth
        (True, Rule.FASTER_THAN_LIGHT, 0, False),
        (True, Rule.OUTLIER, 9, False),
        (False, Rule.FASTER_THAN_LIGHT, 9, False),  # a datasheet does not age
    ],
)
def test_times_that_beat_a_calibration_are_blamed_on_it(
    tmp_path: Path, calibrated: bool, rule: Rule, count: int, said: bool
):
    (table,) = read(write_table(tmp_path))
    assert len(GRID) == 64
    if calibrated:
        device = replace(table.device, datasheet=None, calibrated=Roofs(source="a slow hour"))
        table = replace(table, device=device)
    about = {"source": table.source, "kernel": "gemm", "device": table.device.name, "direction": "step"}
    findings = [Finding(**about, row=row, line=row + 2, rule=rule, evidence="", factor=2.0) for row in range(count)]
    notes = " ".join(report_of(Fit(models=(), few={}), [table], findings, tmp_path).notes)
    assert ("faster than its calibration allows" in notes) == said
    if said:
        assert "1 of 64 times on A100-SXM4-80GB" in notes


def test_an_operator_is_spoken_of_once_whatever_its_files_and_directions(tmp_path: Path) -> None:
    tables = [
        read(write_table(tmp_path / part, "gelu_rows", VECTORS))[0]
        for part in ("first", "second")
        if not (tmp_path / part).mkdir()
    ]
    about = {"device": tables[0].device.name, "rule": Rule.UNUSABLE_COLUMN, "row": None, "line": None, "factor": 2.0}
    findings = [
        Finding(**about, kernel=table.kernel, source=table.source, direction=way, evidence="too fast")
        for table in tables
        for way in ("fwd", "bwd")
    ]
    notes = report_of(Fit(models=(), few={}), tables, findings, tmp_path).notes
    whole = [note for note in notes if note.startswith("Left out whole: ")]
    assert whole == [f"Left out whole: {tables[0].label} fwd, bwd on {tables[0].device.name}: too fast."]


A100 = get("A100-PCIe-40GB")
US = 1e-6


def relu(elements: int):
    return op("aten::relu", {"self": spec((elements,))}, [spec((elements,))])


def shown(floor_s: float, inside_s: float, device=A100) -> Shown:
    """Times of relu at 200 sizes: 1.2 times the bound and ``inside_s``, at least ``floor_s``."""
    found = [facts_of([relu(int(size))], device) for size in np.geomspace(1e3, 1e9, 200)]
    values = np.array([each.values for each in found])
    seconds = np.maximum(floor_s, 1.2 * values[:, 0] + inside_s)
    return Shown(key=found[0].key, device=device, facts=values, slowdown=np.log(seconds / values[:, 0]))


def test_a_floor_that_no_kernel_has_is_a_launch():
    # 0.55 of the floor
    assert launch_inside_s([shown(31e-6, 20e-6)]) == pytest.approx(0.55 * 31e-6, rel=0.01)
    assert launch_inside_s([shown(3e-6, 0.0)]) == 0.0
    assert launch_inside_s([shown(15e-6, 8e-6)]) == 0.0  # may be the device's own
    assert launch_inside_s([shown(31e-6, 20e-6), shown(3e-6, 0.0)]) == 0.0
    assert launch_inside_s([shown(31e-6, 20e-6, replace(A100, kind="cpu"))]) == 0.0
    assert launch_inside_s([]) == 0.0


def test_rows_of_one_size_are_no_floor():
    found = [facts_of([relu(int(size))], A100) for size in np.linspace(1e7, 1.1e7, 100)]
    values = np.array([each.values for each in found])
    alike = Shown(key=found[0].key, device=A100, facts=values, slowdown=np.full(len(values), 0.2))
    assert (values[:, 0] > 40e-6).all()
    assert launch_inside_s([alike]) == 0.0


def test_a_step_has_no_launch_in_its_device_time_but_an_op_asked_for_has():
    model, *_ = models = learn_all([shown(31e-6, 17e-6)]).models
    assert decode(encode(model)).experts[0].launch_s == model.experts[0].launch_s > 0
    predictor = Predictor.of(models)
    small = relu(1000)
    alone = predictor.predict(small, A100)
    assert alone.time_s == pytest.approx(31e-6, rel=0.1)
    # at the floor the host takes all of it
    assert alone.launch_s == pytest.approx(alone.time_s, rel=0.3)
    # but for the shortest kernel
    assert alone.time_s - alone.launch_s >= SHORTEST_KERNEL_S * (1 - 1e-9)
    step = rl.analyze(session_of([Call(op=small)] * 10), A100, predictor=predictor, host=0.0)
    assert step.totals.predicted.time_s == pytest.approx(10 * max(alone.bound_s, alone.time_s - alone.launch_s))
    large = relu(10**9)
    of_large = rl.analyze(session_of([Call(op=large)]), A100, predictor=predictor).totals.predicted
    assert of_large.time_s == pytest.approx(1.2 * of_large.bound_s, rel=0.05)


def test_a_device_time_is_no_faster_than_the_bound_and_its_kernels():
    found = Predictor.of(learn_all([shown(31e-6, 17e-6)]).models).predict(relu(1000), A100)
    faster = replace(found, launch_s=1.0).on_device
    assert faster.time_s == faster.low_s == faster.high_s == found.kernels_s > found.bound_s
    assert found.kernels_s == SHORTEST_KERNEL_S  # the catalog has none of this GPU
    unlimited = replace(found, launch_s=1.0, kernels_s=0.0).on_device
    assert unlimited.time_s == unlimited.low_s == unlimited.high_s == found.bound_s
    assert faster.launch_s == 0


def test_an_unseen_device_has_no_launch_of_others_in_its_steps():
    predictor = Predictor.of(learn_all([shown(31e-6, 17e-6)]).models)
    step = rl.analyze(session_of([Call(op=relu(1000))]), "L40S", predictor=predictor).totals.predicted
    assert step.time_s < 31e-6 / 3
    large = rl.analyze(session_of([Call(op=relu(10**9))]), "L40S", predictor=predictor).totals.predicted
    assert 1.1 * large.bound_s < large.time_s < 1.5 * large.bound_s


def test_far_above_the_floor_a_launch_is_all_there_is_to_take_away():
    times = np.array([20e-6, 40e-6, 80e-6, 400e-6])
    left = without_launch(times, 20e-6)
    assert left[:2] == pytest.approx([0.0, 0.0], abs=1e-12)  # 1.1 x 20 / 0.55 = 40 µs is the floor
    # 80 - 20 - 20 e^-2 = 57.3
    assert left[2:] == pytest.approx([57.3e-6, 380e-6], rel=1e-3)
    assert without_launch(times, 0.0) is times
    assert without_launch(times, 9e-6) is times
