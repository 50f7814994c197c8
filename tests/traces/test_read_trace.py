"""Sessions made of traces: the same ops as a recording of the program, and the device's time at the right op."""

import dataclasses

import pytest
import torch
from kineto_traces import kernel, launch, op, profiled, ran, span, write
from torch import nn

import rooflight as rl
from rooflight.costs.registry import traits_of
from rooflight.records.record import Direction


def signatures(session):
    """Signatures of the ops that are no views: a trace has those of a live recording, but not its storages."""
    return sorted(
        (one.signature.name, [(t.shape, t.dtype) for t in one.signature.inputs], one.signature.attributes)
        for one in session.records
        if one.parent is None and not traits_of(one.signature.name).view
    )


MLP = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 32))
CNN = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
)


def attention():
    q = torch.randn(2, 4, 16, 32)
    return nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).softmax(-1).sum(dim=1)


@pytest.mark.parametrize(
    "step",
    [lambda: MLP(torch.ones(8, 64)), lambda: CNN.eval()(torch.ones(2, 3, 32, 32)), attention],
    ids=["mlp", "cnn", "attention"],
)
def test_a_trace_of_the_cpu_has_the_ops_of_a_recording(tmp_path, step):
    step()
    session = rl.read_trace(profiled(tmp_path / "trace.json", step))
    with rl.record() as recording, torch.no_grad():
        step()
    assert signatures(session) == signatures(recording.session)
    found = rl.analyze(session, "H100-SXM5-80GB").totals
    live = rl.analyze(recording.session, "H100-SXM5-80GB").totals
    assert found.matrix_flops == live.matrix_flops
    assert found.vector_flops == live.vector_flops


def test_a_trace_of_the_cpu_has_the_modules(tmp_path):
    session = rl.read_trace(profiled(tmp_path / "trace.json", lambda: MLP(torch.ones(8, 64)), with_stack=True))
    places = [(one.signature.name, one.module.path, one.module.class_name) for one in session.records]
    linear = [(path, kind) for name, path, kind in places if name == "aten::addmm"]
    assert linear == [("Sequential_0.Linear_0", "Linear"), ("Sequential_0.Linear_1", "Linear")]


# On the host: mm runs from 0 to 10 and launches at 2, add from 20 to 30 at 22. On the device: mm has a kernel of 5 µs
# and one of 3 µs, add one of 4 µs; one of 7 µs was launched before the trace, and one of 2 µs by no op at all.
MM = {"dims": [[4, 8], [8, 2]], "types": ["float", "float"]}
ADD = {"dims": [[4, 2], [4, 2], []], "types": ["float", "float", "Scalar"], "Concrete_Inputs": ["", "", "1"]}
EVENTS = [
    kernel(0, 7, 1, name="before"),
    op("aten::matmul", 0, 12, **MM),
    op("aten::mm", 1, 10, **MM),
    launch(2, 10),
    launch(4, 11),
    op("aten::add", 20, 30, **ADD),
    launch(22, 12),
    launch(40, 13),
    kernel(10, 15, 10),
    kernel(15, 18, 11),
    kernel(25, 29, 12),
    kernel(41, 43, 13),
]


def test_the_devices_time_is_at_the_op_that_launched_it(read):
    session = read(*EVENTS)
    times = [(one.signature.name, pytest.approx([each * 1e6 for each in one.times_s])) for one in session.records]
    assert times == [("aten::mm", [8]), ("aten::add", [4])]
    assert session.environment["gpu"] == "NVIDIA H100 80GB HBM3"
    assert session.measurement.wall_s == pytest.approx(43e-6)
    timeline = session.measurement.timeline
    assert (timeline.before_trace_s, timeline.no_host_op_s) == (pytest.approx(7e-6), pytest.approx(2e-6))
    analysis = rl.analyze(session)
    assert analysis.device.name == "H100-SXM5-80GB"
    assert analysis.totals.matrix_flops == 2 * 4 * 8 * 2


def by_external_id(event, number):
    event["args"] = {key: value for key, value in event["args"].items() if key != "correlation"}
    event["args"]["External id"] = number
    return event


def test_work_is_joined_to_calls_by_external_ids_where_there_are_no_correlations(read):
    """As an older profiler of ROCm wrote them: the ids are those of calls, and an op has another of its own."""
    events = [
        op("aten::mm", 0, 10, **MM, External_id=7),
        by_external_id(launch(2, 0), 8),
        op("aten::add", 20, 30, **ADD, External_id=8),
        by_external_id(launch(22, 0), 9),
        by_external_id(kernel(10, 15, 0), 8),
        by_external_id(kernel(25, 29, 0), 9),
        kernel(40, 41, 8),  # a correlation is no External id
    ]
    session = read(*events)
    times = [(one.signature.name, pytest.approx([each * 1e6 for each in one.times_s])) for one in session.records]
    assert times == [("aten::mm", [5]), ("aten::add", [4])]
    assert session.measurement.timeline.without_op_s == pytest.approx(1e-6)


def test_a_description_of_another_tool_is_read(read):
    """Its lists of shapes leave out the settings, which are in round brackets, and its dtypes are torch's own names."""
    described = {"dims": [[8, 64, 32, 32], [64, 1, 3, 3]], "types": ["Float", "Float"]}
    settings = ["", "", "", "(1,1)", "(1,1)", "(1,1)", "False", "(0,0)", "64"]
    analysis = rl.analyze(read(*ran("aten::convolution", **described, Concrete_Inputs=settings)))
    assert analysis.totals.matrix_flops == 2 * 8 * 64 * 32 * 32 * 3 * 3
    assert analysis.coverage.calls == 1


@pytest.mark.slow
def test_every_labelled_trace_has_its_ops(shown):
    """Files of one kind of op each, so that all work has one."""
    files = sorted((shown / "labelled").glob("*.json.gz"))
    assert len(files) == 11
    for file in files:
        session = rl.read_trace(file)
        assert session.measurement.timeline.without_op == ()
        session = dataclasses.replace(session, environment={**session.environment, "gpu": "MI300X"})
        assert rl.analyze(session).coverage.calls == 1


def test_coverage_is_of_the_work_that_was_done(read, run, tmp_path):
    """Replays of a graph without its capture: of 109 µs of work, 9 µs belong to an op."""
    events = [
        *EVENTS[1:9],
        launch(50, 20, name="cudaGraphLaunch"),
        *(kernel(50 + 10 * number, 60 + 10 * number, 20, name=f"replayed_{number}") for number in range(10)),
        kernel(25, 29, 12),
    ]
    session = read(*events)
    coverage = rl.analyze(session).coverage
    assert coverage.time == pytest.approx(9 / 109)
    assert coverage.calls == pytest.approx(2 / (2 + 10))
    assert coverage.bytes is None
    assert sum(op.calls for op in coverage.uncosted) == 10
    _, shown, _ = run("analyze", tmp_path / "trace.json")
    assert "8.3% of the device's work by time, 16.7% of calls, of unknown bytes" in " ".join(shown.split())
    assert "10 calls have no cost and are missing from the totals" in " ".join(shown.split())


CONVOLUTION = {
    "dims": [[1, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], [], [], []],
    "types": ["float", "float", "", "GenericList", "GenericList", "GenericList", "Bool", "GenericList", "Int"],
}


@pytest.mark.parametrize(
    ("name", "described", "reason"),
    [
        ("aten::convolution", CONVOLUTION, "the trace does not contain its stride"),
        ("aten::mm", {}, "the trace has no shapes of it: record it with record_shapes=True"),
    ],
)
def test_an_op_of_which_the_trace_lacks_something_is_uncosted(read, name, described, reason):
    analysis = rl.analyze(read(*ran(name, **described)))
    (missing,) = analysis.coverage.uncosted
    assert missing.reason.startswith(reason)
    assert analysis.coverage.calls == 0


def test_a_custom_op_is_costed_by_a_formula_of_its_name(read, restored_formulas):
    @rl.formula("mylib::scale")
    def scale(op):
        return rl.OpCost(vector_flops=op.inputs[0].numel, bytes_read=op.input_bytes)

    analysis = rl.analyze(read(*ran("mylib::scale", dims=[[100], []], types=["float", "Scalar"])))
    assert analysis.totals.vector_flops == 100
    assert analysis.coverage.calls == 1


@pytest.mark.parametrize("dims", [[-1, 4], ["4"], [[4]], [1.5], {"a": 1}, None])
def test_shapes_that_are_none_do_no_harm(read, dims):
    session = read(*ran("mylib::scale", dims=[dims, []], types=["float", "Scalar"]))
    assert session.signatures[0].inputs == ()
    assert rl.analyze(session).coverage.calls == 0


def test_phases_backward_and_optimizer_are_found(read):
    events = [
        span("ProfilerStep#3", 0, 100),
        span("train", 0, 60),
        op("aten::mm", 1, 5, **MM, Sequence_number=7, Fwd_thread_id=0),
        launch(2, 1),
        op("MmBackward0", 20, 30, thread=2, Sequence_number=7, Fwd_thread_id=1),
        op("aten::mm", 21, 29, thread=2, **MM),
        launch(22, 2, thread=2),
        span("Optimizer.step#SGD.step", 70, 90),
        op("aten::add_", 71, 80, **ADD),
        launch(72, 3),
        *[kernel(10 * n, 10 * n + 5, n) for n in (1, 2, 3)],
    ]
    found = [(one.phase, one.direction) for one in read(*events).records]
    assert found == [("train", Direction.FORWARD), ("train", Direction.BACKWARD), ("", Direction.OPTIMIZER)]


def test_the_command_analyzes_a_trace(run, tmp_path):
    code, out, _ = run("analyze", write(tmp_path / "trace.json", EVENTS))
    assert code == 0
    assert "Speed of light: trace.json on H100-SXM5-80GB" in out
    assert "kernels in the trace" in out


def test_an_unknown_device_has_a_timeline_and_no_bound(run, tmp_path):
    code, out, _ = run("analyze", write(tmp_path / "trace.json", EVENTS, gpu="NVIDIA X900"))
    assert code == 0
    assert "NVIDIA X900 is unknown, so that nothing is bounded." in " ".join(out.split())
    assert "rooflight devices lists those that are known" in " ".join(out.split())
    for title in ("Timeline of the device", "By kernel", "By op", "Why the device was idle"):
        assert title in out
    assert "op bound" not in out
    assert "efficiency" not in out


FLASH = {"dims": [[2, 8, 4, 16], [2, 8, 2, 16], [2, 8, 2, 16], [], [], [], [], []]}
FLASH["types"] = [*["c10::BFloat16"] * 3, *["Scalar"] * 5]


@pytest.mark.parametrize("name", ["flash_attn::_flash_attn_forward", "aiter::mha_fwd", "FlashAttnFunc"])
@pytest.mark.parametrize("causal", ["True", "False", None])
def test_attention_of_other_libraries_is_causal_where_its_arguments_say_so(read, name, causal):
    values = {} if causal is None else {"Concrete_Inputs": ["", "", "", "0.", "0.25", causal, "-1", "-1"]}
    analysis = rl.analyze(read(*ran(name, by="flash_fwd_kernel", **FLASH, **values)))
    pairs = 8 * 8 if causal == "False" else 8 * 9 // 2  # where nothing shows it, the less work
    assert analysis.totals.matrix_flops == 2 * 2 * 4 * pairs * (16 + 16)
    # q and its result, k and v once
    assert analysis.totals.bytes_moved == 2 * (2 * 2 * 8 * 4 * 16) + 2 * (2 * 2 * 8 * 2 * 16)


def test_an_op_with_a_tensor_for_the_dispatcher_alone_is_known_without_it(read):
    described = {"dims": [[1], *FLASH["dims"]], "types": ["float", *FLASH["types"]]}
    values = ["", "", "", "", "0.", "0.25", "False", "-1", "-1"]
    session = read(*ran("aiter::wrapper_fmha_v3_fwd", by="fmha_fwd", Concrete_Inputs=values, **described))
    assert rl.analyze(session).totals.matrix_flops == 2 * 2 * 4 * 64 * (16 + 16)


@pytest.mark.parametrize(("causal", "pairs"), [("True", 2 * 6 * 7 // 2), ("False", 2 * 6 * 6)])
def test_packed_attention_counts_the_least_pairs(read, causal, pairs):
    # 12 tokens of two sequences: 6 each have the fewest pairs, 2 and 10 had 3 + 55 of causal attention
    shapes = [[12, 4, 16], [12, 2, 16], [12, 2, 16], [3], [3], *[[]] * 7]
    types = [*["c10::BFloat16"] * 3, "int", "int", *["Scalar"] * 7]
    values = [*[""] * 5, "10", "10", "0.", "0.25", causal, "-1", "-1"]
    packed = {"dims": shapes, "types": types, "Concrete_Inputs": values}
    session = read(*ran("flash_attn::_flash_attn_varlen_forward", by="flash_fwd_kernel", **packed))
    assert rl.analyze(session).totals.matrix_flops == 2 * 4 * pairs * (16 + 16)
