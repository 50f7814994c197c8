"""The diagnosis of traces made by hand, where it is known what holds the device up for how long, and of real ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from kineto_traces import kernel, launch, op, span, write
from tracked import CPU

import rooflight as rl
from rooflight.diagnosis.diagnose import diagnose
from rooflight.roofline.findings import Diagnosis, Finding

MM = {"dims": [[4, 8], [8, 2]], "types": ["float", "float"]}
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
Read = Callable[..., Diagnosis]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(*events: Mapping[str, Any]) -> Diagnosis:
        return diagnose(rl.analyze(rl.read_trace(write(tmp_path / "trace.json", [dict(each) for each in events]))))

    return read


def found(diagnosis: Diagnosis, name: str) -> Finding | None:
    return next((each for each in diagnosis.findings if each.id == name), None)


def multiplied(start: float, until: float, number: int, *, at: float, stream: int = 7) -> list[Any]:
    """An op at ``at`` on the host, whose kernel runs on the device from ``start``."""
    return [op("aten::mm", at, at + 4, **MM), launch(at + 1, number), kernel(start, until, number, stream=stream)]


def test_a_trace_of_a_cpu_needs_no_shapes(tmp_path: Path) -> None:
    pooled = write(tmp_path / "trace.json", [op("aten::max_pool2d_with_indices", 0, 500)])
    assert diagnose(rl.analyze(rl.read_trace(pooled), CPU)).step_s == pytest.approx(500e-6)


@pytest.mark.parametrize(("busy_until", "lost"), [(70, 0), (40, 20), (20, 40)])
def test_a_loader_costs_what_the_device_has_no_work_for(read: Read, busy_until: float, lost: float) -> None:
    # the host fetches from 10 to 60; what is launched then begins at 70
    events = [*multiplied(5, busy_until, 1, at=0), span(LOADER, 10, 60), *multiplied(70, 90, 2, at=61)]
    loader = found(read(*events), "loader")
    if not lost:
        assert loader is None
    else:
        assert loader is not None
        assert loader.seconds_lost == pytest.approx(lost * 1e-6)
        assert loader.predicted_gain_s <= loader.seconds_lost


def test_what_was_queued_while_the_device_worked_is_no_late_launch(read: Read, tmp_path: Path) -> None:
    def steps(launched: Callable[[int], float]) -> list[Any]:
        """Ten kernels of 60 µs, one each 70 µs."""
        at = (multiplied(70 * k, 70 * k + 60, k, at=launched(k)) for k in range(1, 11))
        return [event for each in at for event in each]

    def idle(events: list[Any]) -> Any:
        timeline = rl.read_trace(write(tmp_path / "idle.json", events)).measurement.timeline  # type: ignore[union-attr]
        assert timeline is not None
        return timeline.idle

    queued, late = steps(lambda k: 61.0 + 5 * k), steps(lambda k: 70.0 * k - 4)
    # nine times the device turns from one to the next, in 10 µs
    assert idle(queued).queued_s == pytest.approx(90e-6)
    # of these a late launch takes 8 until its call returns, and 2 more; of the first, 2 and 2 are in the trace
    assert idle(late).queued_s == 0
    assert idle(late).host_late_s == pytest.approx(9 * 8e-6 + 2e-6)
    assert idle(late).launch_s == pytest.approx((9 + 1) * 2e-6)
    graphs = found(read(*late), "cuda-graphs")
    assert graphs is not None
    assert graphs.seconds_lost == pytest.approx(9 * 10e-6 + 4e-6)
    assert found(read(*queued), "cuda-graphs") is None


@pytest.mark.parametrize(("computed_until", "exposed"), [(60, 0), (40, 20)])
def test_communication_costs_what_no_stream_hides(read: Read, computed_until: float, exposed: float) -> None:
    events = [
        *multiplied(5, computed_until, 1, at=0),
        op("nccl:all_reduce", 6, 10, dims=[[1 << 20]], types=["float"]),
        launch(7, 2),
        kernel(10, 60, 2, name=RING, stream=20),
        *multiplied(60, 80, 3, at=12),
    ]
    overlap = found(read(*events), "overlap")
    if not exposed:
        assert overlap is None
    else:
        assert overlap is not None
        assert overlap.seconds_lost == pytest.approx(exposed * 1e-6)


def test_a_rank_that_waits_for_another_is_told_so(read: Read) -> None:
    # 20 to 60 in a barrier, of which the device works until 30
    events = [*multiplied(5, 30, 1, at=0), span("gloo:barrier", 20, 60), *multiplied(64, 80, 2, at=61)]
    rank = found(read(*events), "rank-wait")
    assert rank is not None
    assert rank.seconds_lost == pytest.approx(30e-6)
    assert rank.regime == "communication"
    hidden = [*multiplied(5, 62, 1, at=0), span("gloo:barrier", 20, 60), *multiplied(64, 80, 2, at=61)]
    assert found(read(*hidden), "rank-wait") is None


def test_the_line_of_the_program_that_waits_is_named(read: Read) -> None:
    frames = [
        span("train.py(3): <module>", 0, 100, cat="python_function"),
        span("/home/me/train.py(31): step", 1, 90, cat="python_function"),
        span("torch/_tensor.py(40): item", 12, 70, cat="python_function"),
        span("<built-in method item of Tensor object at 0x7f>", 12, 70, cat="python_function"),
        span("threading.py(300): wait", 12, 70, cat="python_function"),
    ]
    waits = {**launch(14, 9, name="cudaStreamSynchronize"), "dur": 26}  # until the first kernel is done
    item = [op("aten::item", 13, 45), waits]
    events = [*multiplied(5, 40, 1, at=0), *item, *multiplied(80, 100, 2, at=71), *frames]
    sync = found(read(*events), "sync")
    assert sync is not None
    assert sync.evidence.endswith(", mostly in aten::item, step, me/train.py:31")


REAL = {
    "h100_bert-small": ("overhead", "cuda-graphs"),
    "h100_vit-nsfw": ("overhead", "cuda-graphs"),
    "mi300x_resnet_checkpoint_ddp": ("communication", "overlap"),
    "v100_resnet50_loader_0_workers_2021": ("idle", "loader"),
    "h100_qwen1.5-0.5b": ("memory", "copies"),
}
"""By trace its regime and its first remedy."""


def test_real_traces_have_the_remedy_of_their_regime_first() -> None:
    folder = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "traces"
    if not folder.is_dir():
        pytest.skip("needs the traces of ROOFLIGHT_DATA")
    for name, expected in REAL.items():
        diagnosis = diagnose(rl.analyze(str(folder / f"{name}.json.gz")))
        assert (name, diagnosis.regime, diagnosis.findings[0].id) == (name, *expected)
