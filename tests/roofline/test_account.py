"""The account of an iteration, by hand arithmetic: 1 B/s of memory, units that hardly take time, tensors of 256 B."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accounts import violations
from builders import op, spec
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import Call, programs_of, session_of

import rooflight as rl
from rooflight.diagnosis.diagnose import diagnose
from rooflight.diagnosis.remedies.devices import with_devices
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.records.account import CAUSES, REGIME_OF, Cause, Place, Regime
from rooflight.records.measurement import Measurement
from rooflight.records.quantity import Quantity
from rooflight.records.record import Direction
from rooflight.records.session import Lifetimes, Session
from rooflight.records.timeline import Between, HostLine, HostTime, Run, Within
from rooflight.roofline.account.account import Account, Pieces
from rooflight.roofline.account.batch import batch_of
from rooflight.roofline.account.cut import seen_in
from rooflight.roofline.account.times import Times
from rooflight.roofline.analysis import Analysis, analyze
from rooflight.roofline.tables.findings import answer, findings_facts
from rooflight.roofline.tables.report import analysis_facts

X = spec((8, 8))  # 256 B
EXP, MM = op("aten::exp", {"self": X}, [X]), op("aten::mm", {"self": X, "mat2": X}, [X])
ODD = op("mine::odd", {"x": X}, [X])
B = 256


def device(kind: str = "cuda") -> DeviceSpec:
    figures: dict[str, Any] = {"matrix_flops_per_s": {"float32": 1e12}, "vector_flops_per_s": {"float32": 1e12}}
    roofs = Roofs(source="by hand", memory=(MemoryLevel(name="DRAM", bytes_per_s=1.0),), **figures)
    return DeviceSpec(name="slow", vendor="", architecture="", kind=kind, datasheet=roofs)  # type: ignore[arg-type]


def chain(times: list[list[float]], walls: list[float], **more: Any) -> Session:
    """exp of 0 to 1, exp of 1 to 2: a region that reads and writes a tensor, two ops that do so twice."""
    calls = [Call(op=EXP, reads=(0,), writes=(1,)), Call(op=EXP, reads=(1,), writes=(2,))]
    return session_of(calls, times=times, walls=walls, storage_bytes=(B, B, B), **more)


def seconds(analysis: Analysis) -> dict[str, float]:
    return analysis.account.by("cause")


def test_without_roofs_a_kernel_is_no_dispatch_and_products_compute() -> None:
    wide = spec((512, 512))
    product = op("aten::mm", {"self": wide, "mat2": wide}, [wide])
    calls = [Call(op=product), Call(op=EXP), Call(op=EXP)]
    session = session_of(calls, times=[[8.0, 1.0, 1.0]], walls=[10.0])
    unknown = replace(device("cpu"), datasheet=Roofs(source="nothing is known", memory=()))
    account = analyze(session, unknown).account
    assert account.by("cause")[Cause.UNBOUNDED] == pytest.approx(10.0, rel=1e-3)
    assert [(row.cause, row.regime) for row in account.rows][:1] == [(Cause.UNBOUNDED, Regime.COMPUTE)]


def test_of_compiled_code_ops_share_what_the_others_leave_of_a_step_by_what_fusion_leaves_of_them() -> None:
    x = spec((1 << 20,))
    half = op("aten::exp", {"self": x}, [x])
    calls = [Call(op=half, reads=(0,), writes=(1,)), Call(op=half, reads=(1,), writes=(2,)),
             Call(op=half, reads=(2,), writes=(3,)), Call(op=half, reads=(2,), writes=(4,))]  # fmt: skip
    session = session_of(calls, times=[[8.0, 4.0, 2.0, 2.0]], walls=[10.0], storage_bytes=(4 << 20,) * 5)
    within = Place(file="a.py", line=1, compiled=True)
    columns = replace(session.columns, place=np.array([1, 1, 0, 0], dtype=np.int32))
    compiled = replace(session, columns=columns, places=(Place(), within), environment={"device_kind": "cpu"})
    times = Times(analyze(compiled, device("cpu")))
    # the others take 2 s each and two usual gaps; of the merged ones half of the bytes is left
    assert times.seconds == pytest.approx([4.0, 2.0, 2.0, 2.0], rel=1e-4)
    account = times.analysis.account
    assert account.wall_s == pytest.approx(10.0)
    assert account.by("cause").get(Cause.LAUNCHES, 0.0) < 1e-3


def test_what_the_system_takes_for_new_pages_is_of_those_calls_that_make_large_results() -> None:
    x = spec((1 << 20,))
    exp, small = op("aten::exp", {"self": x}, [x]), EXP
    calls = [Call(op=exp, reads=(0,), writes=(1,)), Call(op=exp, reads=(1,), writes=(1,)),
             Call(op=small, reads=(2,), writes=(3,))]  # fmt: skip
    size = 4 << 20
    session = session_of(calls, times=[[1e9, 1e9, 1.0]], walls=[3e9], storage_bytes=(size, size, B, B),
                         environment={"device_kind": "cpu"})  # fmt: skip
    count = len(session)
    lifetimes = Lifetimes(kind=np.zeros(4, np.int8), made=np.array([-1, 0, -1, 2], np.int32),
                          freed=np.full(4, count, np.int32), local=np.zeros(4, np.bool_),
                          owner=np.zeros(4, np.int32))  # fmt: skip
    for pages, fetched in ((1024.0, 6e8), (100.0, 0.0)):
        host = HostTime(cpu_s=3e9, fetched_s=6e8, pages=pages)
        measured = replace(session.measurement, host=host)
        analysis = analyze(replace(session, lifetimes=lifetimes, measurement=measured), device("cpu"))
        assert Times(analysis).fetching_s == pytest.approx([fetched, 0, 0])
        row = [row for row in analysis.account.rows if row.cause is Cause.ALLOCATOR]
        assert [(each.seconds, each.regime) for each in row] == [(pytest.approx(fetched), Regime.MEMORY)] * bool(
            fetched
        )
        found = [each for each in diagnose(analysis).findings if each.id == "fresh-memory"]
        assert [each.predicted_gain_s for each in found] == [pytest.approx(0.9 * fetched)] * bool(fetched)


def test_a_bound_alone_has_light_and_what_fusion_would_save() -> None:
    analysis = analyze(chain([], []), device())
    assert analysis.account.source == "bound"
    assert analysis.account.wall_s == 4 * B
    assert seconds(analysis) == {"light": 2 * B, "fusion": 2 * B}


def test_a_kernel_takes_light_fusion_and_what_is_slow() -> None:
    # each op: op bound 512 s, share of the fused bound 256 s, taken 1,024 s
    analysis = analyze(chain([[1024.0, 1024.0]], [2048.0]), device())
    assert seconds(analysis) == {"slow_kernels": 1024, "light": 512, "fusion": 512}
    assert analysis.account.shares == {**dict.fromkeys(Regime, 0.0), Regime.MEMORY: 1.0}  # half of its bound is near


def test_a_kernel_far_from_its_bound_is_limited_by_something_else() -> None:
    analysis = analyze(chain([[102_400.0, 102_400.0]], [204_800.0]), device())
    assert analysis.account.shares[Regime.KERNELS] == pytest.approx(0.995)
    # 8 GFLOP/s of 1 TFLOP/s: 16 ns of the 10 us that it took; a kernel so short is latency
    fast = replace(device().datasheet, memory=(MemoryLevel(name="DRAM", bytes_per_s=1e12),))  # type: ignore[type-var]
    short = analyze(chain([[1e-5, 1e-5]], [2e-5]), replace(device(), datasheet=fast))
    assert short.account.shares[Regime.LATENCY] > 0.99


def test_what_takes_longer_than_the_step_is_scaled_down_and_what_nothing_covers_is_unknown() -> None:
    assert seconds(analyze(chain([[1024.0, 1024.0]], [1024.0]), device())) == {
        "slow_kernels": 512, "light": 256, "fusion": 256,
    }  # fmt: skip
    found = seconds(analyze(chain([[1024.0, 1024.0]], [4096.0]), device()))
    assert found["unknown"] == pytest.approx(2048, rel=1e-3)  # less two launches


def test_what_is_faster_than_its_bound_is_light_and_never_negative() -> None:
    analysis = analyze(chain([[100.0, 100.0]], [200.0]), device())
    assert seconds(analysis) == {"light": 200}


def test_work_without_a_bound_is_no_slow_kernel() -> None:
    session = session_of([Call(op=ODD), Call(op=MM)], times=[[10.0, 768.0]], walls=[778.0])
    analysis = analyze(session, device())
    assert seconds(analysis) == pytest.approx({"light": 768, "unbounded_kernels": 10})
    assert analysis.account.shares[Regime.UNKNOWN] == pytest.approx(10 / 778)


def test_the_account_is_of_the_mean_iteration() -> None:
    walls = [2048.0] * 9 + [12_288.0]
    account = analyze(chain([[1024.0, 1024.0]], walls), device()).account
    assert (account.wall_s, account.median_s, account.least_s, account.slow_s) == (3072, 2048, 2048, 12_288)
    (row, *_) = account.rows
    assert row.low_s < row.seconds < row.high_s
    assert (row.seen, row.source) == ((10, 10), "measured")


def test_other_programs_and_few_iterations_make_intervals_wider() -> None:
    def low(walls: list[float], others: float) -> float:
        session = chain([[1024.0, 1024.0]], walls)
        measurement = session.measurement
        assert measurement is not None
        found = analyze(session.with_measurement(replace(measurement, others_share=others)), device()).account
        return found.rows[0].low_s / found.rows[0].seconds

    quiet = [2048.0, 2148.0, 2248.0]
    assert low(quiet, 0.2) < low(quiet, 0.0) < low(quiet * 10, 0.0) < 1


def on_a_cpu(lines: tuple[HostLine, ...], cpu_s: float, wall_s: float = 4.0) -> Analysis:
    session = session_of([Call(op=MM)], walls=[wall_s])
    measured = Measurement(
        wall_samples_s=np.array([wall_s]), op_samples_s=np.array([[1.0]]), op_starts_s=np.array([[0.0]]), clock="",
        host=HostTime(cpu_s=cpu_s, lines=lines),
    )  # fmt: skip
    fast = Roofs(source="by hand", matrix_flops_per_s={"float32": 1e12}, vector_flops_per_s={"float32": 1e12},
                 memory=(MemoryLevel(name="DRAM", bytes_per_s=768.0),))  # fmt: skip
    return analyze(session.with_measurement(measured), replace(device("cpu"), datasheet=fast))


def line(within: Within, seconds: float, asleep_s: float, where: str = "train.py:7") -> HostLine:
    file, _, number = where.partition(":")
    place = Place(file=file, line=int(number), function="step") if file else None
    return HostLine(where=place, within=within, seconds=seconds, asleep_s=asleep_s)


def test_a_thread_that_waits_for_its_loader_waits_for_its_loader() -> None:
    lines = (line(Within.LOADER, 3.0, 3.0, "data.py:31"), line(Within.ITSELF, 1.0, 0.0))
    analysis = on_a_cpu(lines, cpu_s=1.0)
    found = seconds(analysis)
    assert found["loader"] == pytest.approx(3, rel=1e-3)
    assert found["light"] == pytest.approx(1, rel=1e-3)
    assert sum(found.values()) == pytest.approx(4)
    (row,) = [row for row in analysis.account.rows if row.cause is Cause.LOADER]
    assert [str(place) for place in row.where] == ["step, data.py:31"]
    assert max(analysis.account.shares, key=lambda each: analysis.account.shares[each]) is Regime.IDLE


def test_a_thread_asleep_is_not_one_that_runs_python_nor_one_that_waits_for_a_cpu() -> None:
    asleep = seconds(on_a_cpu((line(Within.ITSELF, 4.0, 3.0),), cpu_s=1.0))
    assert asleep["asleep"] == pytest.approx(3, rel=1e-3)
    busy = seconds(on_a_cpu((line(Within.ITSELF, 4.0, 0.0),), cpu_s=4.0))
    assert busy["python"] == pytest.approx(3, rel=1e-3)
    held_up = seconds(on_a_cpu((line(Within.ITSELF, 4.0, 0.0),), cpu_s=1.0))
    assert held_up["other_programs"] == pytest.approx(3, rel=1e-3)


def test_what_lies_before_the_step_of_a_script_is_of_its_iteration() -> None:
    run = Run(script="t.py", exit_code=0, between=(Between(name="loader", seconds=1000.0, share=0.3),
                                                  Between(name="other", seconds=10.0, share=0.1)))  # fmt: skip
    session = replace(chain([[1024.0, 1024.0]], [2048.0]), run=run)
    account = analyze(session, device()).account
    assert account.wall_s == 3058
    assert account.by("cause") == {"slow_kernels": 1024, "loader": 1000, "light": 512, "fusion": 512, "unknown": 10}


def test_a_key_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match='no account by "colour": use one of cause, phase'):
        analyze(chain([], []), device()).account.by("colour")


def test_every_cause_has_a_regime_or_its_ops() -> None:
    assert set(CAUSES) - set(REGIME_OF) == {Cause.LIGHT, Cause.SLOW_KERNELS, Cause.UNBOUNDED}


@settings(deadline=None, max_examples=60)
@given(programs_of(EXP, MM, ODD), st.data())
def test_pieces_sum_to_the_wall_whatever_was_measured(calls: list[Call], data: st.DataObject) -> None:
    finite = st.floats(0, 1e6)
    steps = data.draw(st.integers(0, 3))
    times = [[data.draw(finite) for _ in calls] for _ in range(steps)]
    walls = [data.draw(st.floats(1e-9, 1e6)) for _ in range(steps)]
    kind = data.draw(st.sampled_from(["cuda", "cpu"]))
    assert violations(analyze(session_of(calls, times=times, walls=walls), device(kind))) == []


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("gpt2", "train"),
        ("mixtral-8x7b", "forward"),
        *(
            pytest.param(name, step, marks=pytest.mark.slow)
            for name in ("gpt2", "llama-3.1-8b", "resnet-50", "mixtral-8x7b")
            for step in ("forward", "train")
        ),
    ],
)
def test_a_preset_bounded_and_predicted_adds_up(name: str, step: str) -> None:
    from rooflight.sources.workloads.presets import PRESETS
    from rooflight.sources.workloads.steps import make_step

    images = PRESETS[name].kind == "image-classification"
    made = make_step(name, step=step, batch=1, seq=None if images else 16, small=True)
    with rl.record(made.model) as recording:
        made.run()
    assert violations(analyze(recording.session, "H100-SXM5-80GB")) == []
    predicted = rl.analyze(recording.session, "H100-SXM5-80GB", predictor=rl.Predictor())
    assert predicted.account.source == "predicted"
    assert violations(predicted) == []


def test_all_measured_traces_add_up() -> None:
    folder = Path(os.environ.get("ROOFLIGHT_DATA", "")) / "traces"
    if not folder.is_dir():
        pytest.skip("needs the traces of ROOFLIGHT_DATA")
    files = [*folder.glob("*.json.gz"), *(folder / "labelled").glob("*.json.gz")]
    found = {path.name: violations(rl.analyze(str(path))) for path in files}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_time_that_no_rule_explains_is_a_hot_spot_and_not_nothing() -> None:
    session = session_of([Call(op=ODD), Call(op=MM)], times=[[7680.0, 768.0]], walls=[8448.0])
    found = diagnose(analyze(session, device()))
    assert found.findings == ()
    (spot,) = found.hot_spots
    assert (spot.what, spot.seconds, spot.causes) == ("mine::odd", pytest.approx(7680), (Cause.UNBOUNDED,))
    text = answer(found)
    assert text == "No remedy was found for mine::odd: 7680 s, 90.9%."
    even = session_of([Call(op=MM)], times=[[768.0]], walls=[768.0])
    assert "Nothing was found" in answer(diagnose(analyze(even, device())))


def test_what_cannot_be_predicted_is_not_called_not_worth_it() -> None:
    session = session_of([Call(op=ODD)], times=[[10.0]], walls=[10.0])
    assert diagnose(analyze(session, device())).not_worth_it == ()


def test_the_first_screen_has_the_account_in_one_line() -> None:
    analysis = analyze(chain([[1024.0] * 2], [2048.0]), device())
    facts = dict(findings_facts(diagnose(analysis), analysis.account))
    assert facts["account"] == "light 512 s | fusion 512 s | slow kernels 1024 s = 2048 s"


def test_a_training_step_says_its_samples_or_tokens_a_second() -> None:
    ids, weight = spec((4, 16), "int64"), spec((100, 8))
    embedding = op("aten::embedding", {"weight": weight, "indices": ids}, [spec((4, 16, 8))])
    calls = [Call(op=embedding, module="tokens", layer="Embedding"), Call(op=MM, direction=Direction.BACKWARD)]
    facts = dict(analysis_facts(analyze(session_of(calls, times=[[1.0, 1.0]], walls=[2.0]), device())))
    # 4 sequences of 16; 2 * 8 * 8 * 8 = 1,024 FLOPs in 2 s, of 1 TFLOP/s
    assert str(facts["throughput"]).startswith("64 tokens a step, 32 tokens/s, MFU <0.1%")
    assert batch_of(session_of([Call(op=MM)])) is None
    forward = dict(analysis_facts(analyze(session_of(calls[:1], times=[[1.0]], walls=[2.0]), device())))
    assert "throughput" not in forward
    image = Call(op=MM, module="layer", layer="Linear")
    assert batch_of(session_of([image, calls[1]])) == ("samples", 8)


def test_what_a_rank_waits_for_another_is_a_row_of_its_own() -> None:
    session = session_of([Call(op=ODD)], times=[[10.0]], walls=[10.0])
    account = analyze(session, device()).account
    pieces = (*account.pieces, Pieces.waited(Cause.COMMUNICATION, 4.0, 1))
    whole = Account(pieces, np.array([14.0]), "measured", lambda _: (np.zeros(1, dtype=np.int64), ["all"]))
    assert whole.waiting_for_ranks(3.0).by("cause") == {"unbounded_kernels": 10, "rank": 3, "communication": 1}
    assert whole.waiting_for_ranks(9.0).by("cause") == {"unbounded_kernels": 10, "rank": 4}


def test_another_device_changes_the_device_and_not_the_host() -> None:
    lines = (line(Within.LOADER, 3.0, 3.0, "data.py:31"), line(Within.ITSELF, 1.0, 0.0))
    here = on_a_cpu(lines, cpu_s=1.0)
    there = rl.analyze(session_of([Call(op=MM)]), "H100-SXM5-80GB", predictor=rl.Predictor())
    wall = there.totals.predicted_wall
    assert wall is not None
    (*_, other) = with_devices(diagnose(here), here.account, [there]).findings
    assert other.predicted_gain_s == pytest.approx(1.0, rel=1e-3)  # the loader's three seconds stay
    assert f"there data loader is the limit, 3.00 s of {Quantity(3 + wall.time_s, 's')}" in other.evidence


def test_a_pause_now_and_then_is_of_those_iterations_that_have_it() -> None:
    walls = np.array([1.0] * 27 + [11.0] * 3)
    assert seen_in(walls, 1.0) == 3  # 3 * 10 s over 30 iterations
    assert seen_in(walls, 0.1) == 30
    assert seen_in(np.ones(30), 1.0) == 30


def test_samples_are_those_of_the_input_and_not_of_the_weight() -> None:
    net = torch.nn.Linear(32, 8)
    with rl.record(memory=True) as recording:
        net(torch.randn(16, 32)).sum().backward()
    assert batch_of(recording.session) == ("samples", 16)


def test_samples_are_those_of_the_input_before_layers_look_at_it_in_another_shape() -> None:
    net = torch.nn.Linear(32, 8)
    with rl.record(memory=True) as recording:
        net(torch.randn(4, 16, 32)).sum().backward()
    assert batch_of(recording.session) == ("samples", 4)


def test_micro_batches_add_up() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(32, 8), torch.nn.Linear(8, 2))
    with rl.record(memory=True) as recording:
        for data in torch.randn(48, 32).split(16):
            net(data).sum().backward()
    assert batch_of(recording.session) == ("samples", 48)
    words = torch.nn.Embedding(9, 4)
    with rl.record(memory=True) as recording:
        for _ in range(2):
            words(torch.zeros(3, 5, dtype=torch.long)).sum().backward()
    assert batch_of(recording.session) == ("tokens", 30)


def test_what_a_generator_makes_is_no_batch_of_the_discriminator() -> None:
    makes, judges = torch.nn.Linear(4, 32), torch.nn.Linear(32, 1)
    with rl.record(memory=True) as recording:
        judges(torch.randn(16, 32)).sum().backward()
        fake = makes(torch.randn(16, 4))
        judges(fake.detach()).sum().backward()
        judges(fake).sum().backward()
    assert batch_of(recording.session) == ("samples", 16)


def test_a_cell_in_a_loop_has_one_batch() -> None:
    cell = torch.nn.RNNCell(4, 8)
    with rl.record(memory=True) as recording:
        state = torch.zeros(3, 8)
        for step in torch.randn(5, 3, 4):
            state = cell(step, state)
        state.sum().backward()
    assert batch_of(recording.session) == ("samples", 3)


def test_positions_that_a_model_makes_are_no_batch() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions, self.words = torch.nn.Embedding(16, 4), torch.nn.Embedding(32, 4)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.positions(torch.arange(tokens.shape[1])) + self.words(tokens)

    model = Model()
    with rl.record(model, memory=True) as recording:
        for _ in range(3):
            model(torch.zeros(5, 16, dtype=torch.int64)).sum().backward()
    assert batch_of(recording.session) == ("tokens", 3 * 5 * 16)
