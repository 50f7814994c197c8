"""Profilers on a clock that the test moves: the host's on a CPU, a device's that stands in for CUDA's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked_ranks
import pytest
from fake_clock import FakeClock
from fake_device import FakeDevice
from toy_engine import Engine, engine_of

from rooflight.inference import Profiler, ProfilerConfig, register_active_profiler, release_active_profiler


@dataclass
class Bench:
    """A profiler whose program takes the nanoseconds that the test says, on whatever clock times it."""

    profiler: Profiler
    clock: FakeClock
    device: FakeDevice | None

    def work(self, nanoseconds: int) -> None:
        self.clock.time_ns += nanoseconds
        if self.device is not None:
            self.device.work(nanoseconds)

    def catch_up(self) -> None:
        """The device does all that is queued."""
        if self.device is not None:
            self.device.finish()

    def spend(self, nanoseconds: int) -> None:
        """Work that is done at once, as an engine that waits for its device has it."""
        self.work(nanoseconds)
        self.catch_up()

    def summary(self) -> dict[str, Any]:
        folder = self.profiler.save_all()
        assert folder is not None
        return json.loads((folder / "summary.json").read_text())

    def report(self) -> str:
        return (self.profiler.out_dir / "report.md").read_text()


@pytest.fixture
def make(tmp_path) -> Iterator[Any]:
    """Makes benches: settings by name; ``device`` a FakeDevice for CUDA's side."""

    made: list[Profiler] = []

    def bench(device: FakeDevice | None = None, **settings: Any) -> Bench:
        settings = {"model_profiling": True, "engine_profiling": True, "warmup_runs": 0, "run_name": "run"} | settings
        config = ProfilerConfig(**{"output_dir": str(tmp_path / "out"), "print_per_run": False} | settings)
        clock = FakeClock()
        profiler = Profiler(config, device=device or "cpu", clock=clock.now_ns)
        made.append(profiler)
        register_active_profiler(profiler)
        return Bench(profiler, clock, device)

    yield bench
    release_active_profiler()
    for profiler in made:
        profiler.detach()


@pytest.fixture(params=["cpu", "device", "device without strict_sync"])
def bench(request, make) -> Bench:
    """A profiler on each kind of clock: what they measure must be the same."""
    if request.param == "cpu":
        return make()
    return make(FakeDevice(), strict_sync=request.param == "device")


@pytest.fixture(scope="module")
def folder(request, tmp_path_factory) -> Path:
    """Where two real ranks of the module's ``WORKER`` wrote what their profilers saw."""
    folder = tmp_path_factory.mktemp("ranks")
    forked_ranks.start(request.path.with_name(request.module.WORKER), folder, [2])
    return folder


@pytest.fixture(scope="module")
def ranks(folder) -> list[dict]:
    """What they saw."""
    return [json.loads((folder / f"2_{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture
def as_rank(monkeypatch):
    """Makes this process a rank of a world, as torchrun does."""

    def become(rank: int, world: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))

    return become


@pytest.fixture
def host(make) -> Bench:
    """A profiler on the host's clock."""
    return make()


@pytest.fixture
def prof(request, make) -> Profiler:
    """The profiler of the test's ``bench`` or ``host``, or one of its own."""
    for name in ("bench", "host"):
        if name in request.fixturenames:
            return request.getfixturevalue(name).profiler
    return make().profiler


@pytest.fixture
def work(bench):
    """What the program does: so many nanoseconds."""
    return bench.work


@pytest.fixture
def engine(bench) -> Engine:
    """A toy engine on the test's ``bench``."""
    return engine_of(bench)
