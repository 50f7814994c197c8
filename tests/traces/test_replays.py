"""Replays of graphs: their kernels belong to the ops whose launches were captured."""

import pytest
from kineto_traces import kernel, launch, op, span, write

import rooflight as rl

MM = {"dims": [[4, 8], [8, 2]], "types": ["float", "float"]}
WIDE = {"dims": [[16, 8], [8, 2]], "types": ["float", "float"]}
ADD = {"dims": [[4, 2], [4, 2], []], "types": ["float", "float", "Scalar"], "Concrete_Inputs": ["", "", "1"]}


def named(start, correlation, name):
    """A launch as ROCm's profiler notes it, with the kernel's name."""
    call = launch(start, correlation, name="hipLaunchKernel")
    return call | {"args": call["args"] | {"kernel": name}}


def captured(at, correlation, names=("Cijk_1", "Cijk_2", "add"), first=MM):
    """A capture of mm, which launches two kernels, and of add, which launches one."""
    launches = [named(at + 3 + 5 * place, correlation + place, name) for place, name in enumerate(names)]
    if None in names:
        launches = [launch(at + 3 + 5 * place, correlation + place) for place in range(len(names))]
    return [
        launch(at, correlation + 100, name="hipStreamBeginCapture"),
        op("aten::mm", at + 2, at + 11, **first),
        op("aten::add", at + 12, at + 20, **ADD),
        *launches,
        launch(at + 30, correlation + 101, name="hipStreamEndCapture"),
    ]


def replayed(at, correlation, names=("Cijk_1", "Cijk_2", "add"), times=(5, 3, 4)):
    """The replay of such a graph: one call, and its kernels one after the other."""
    events, start = [launch(at, correlation, name="hipGraphLaunch")], at + 10
    for name, time in zip(names, times, strict=True):
        events.append(kernel(start, start + time, correlation, name=name))
        start += time + 1
    return events


@pytest.fixture
def joined(tmp_path):
    """Reads replays with the trace of their capture."""

    def joined(replays, captures):
        trace, capture = write(tmp_path / "replay.json", replays), write(tmp_path / "capture.json", captures)
        return rl.read_trace(trace, capture)

    return joined


def times(session):
    return [(one.signature.name, one.signature.input_shapes[0], round(one.times_s[0] * 1e6)) for one in session.records]


@pytest.mark.parametrize("names", [("Cijk_1", "Cijk_2", "add"), (None, None, None)], ids=["rocm", "cuda"])
def test_kernels_of_a_replay_belong_to_the_ops_of_the_capture(joined, names):
    session = joined(replayed(0, 1), captured(0, 50, names))
    assert times(session) == [("aten::mm", (4, 8), 5 + 3), ("aten::add", (4, 2), 4)]
    assert session.measurement.timeline.no_host_op_s == 0
    assert session.measurement.timeline.without_op == ()
    assert "3 of 3 kernels, copies and fills of 1 replay joined to the ops captured in capture.json" in session.notes[0]
    assert rl.analyze(session).totals.matrix_flops == 2 * 4 * 8 * 2


def test_each_replay_runs_the_ops_again(joined):
    session = joined(replayed(0, 1) + replayed(100, 2, times=(50, 30, 40)), captured(0, 50))
    assert [time for _, _, time in times(session)] == [8, 4, 80, 40]
    assert len(session.signatures) == 2
    session = joined([span("decode", -1, 110), *replayed(0, 1), *replayed(50, 2)], captured(0, 50) + captured(100, 250))
    assert len(list(session.records)) == 4  # layers that were captured one by one take turns
    assert session.phases == ("decode",)  # of the replay


def test_other_work_stays_with_its_own_ops(joined):
    own = [op("aten::mm", 200, 220, **WIDE), launch(202, 9), kernel(230, 239, 9)]
    alone = [launch(300, 10), kernel(310, 312, 10)]
    session = joined(replayed(0, 1) + own + alone, captured(0, 50))
    assert times(session) == [("aten::mm", (4, 8), 8), ("aten::add", (4, 2), 4), ("aten::mm", (16, 8), 9)]
    assert session.measurement.timeline.no_host_op_s == pytest.approx(2e-6)


def test_a_replay_within_an_op_is_taken_from_it(joined):
    session = joined([*replayed(0, 1), op("Torch-Compiled Region: 0/0", -5, 50)], captured(0, 50))
    assert [name for name, _, _ in times(session)] == ["aten::mm", "aten::add"]


def test_kernels_of_equal_names_are_joined_in_order_whatever_runs_between(joined):
    # on two streams the add may begin before the second kernel of mm
    session = joined(replayed(0, 1, ("Cijk_1", "add", "Cijk_2"), (5, 3, 4)), captured(0, 50))
    assert times(session) == [("aten::mm", (4, 8), 9), ("aten::add", (4, 2), 3)]


def test_copies_and_fills_are_joined_by_their_kind(joined):
    capture = [
        launch(0, 150, name="cudaStreamBeginCapture"),
        op("aten::copy_", 1, 9, dims=[[6], [6], []], types=["float", "float", "Scalar"]),
        launch(2, 50, name="cudaMemcpyAsync"),
        op("aten::zero_", 10, 19, dims=[[6]], types=["float"]),
        launch(12, 51, name="cudaMemsetAsync"),
        launch(30, 151, name="cudaStreamEndCapture"),
    ]
    replay = [
        launch(0, 1, name="cudaGraphLaunch"),
        kernel(5, 7, 1, name="Memcpy DtoD (Device -> Device)", cat="gpu_memcpy"),
        kernel(8, 11, 1, name="Memset (Device)", cat="gpu_memset"),
    ]
    assert times(joined(replay, capture)) == [("aten::copy_", (6,), 2), ("aten::zero_", (6,), 3)]


@pytest.mark.parametrize(
    ("around", "shape"),
    [
        ("step[DECODE bs=4]", (4, 8)),
        ("step[DECODE bs=5]", (16, 8)),
        ("step[DECODE bs=16]", (16, 8)),
        ("execute_context_0(0)_generation_3(3)", (4, 8)),  # vLLM's: the tokens of a step are its batch
    ],
)
def test_of_several_captures_that_of_the_batch_size_is_taken(joined, around, shape):
    captures = [span("capture_4_DECODE", -1, 40), *captured(0, 50)]
    captures += [span("capture_16_DECODE", 99, 140), *captured(100, 250, first=WIDE)]
    assert times(joined([span(around, -1, 60), *replayed(0, 1)], captures))[0] == ("aten::mm", shape, 8)


PROBLEMS = {
    "a capture of another graph": (captured(0, 50, ("a", "b", "c")), r"a replay of 3 kernels.* which have 3$"),
    "a capture of more": (captured(0, 50, ("Cijk_1", "Cijk_2", "add", "add")), r"captured there, which have 4$"),
    "captures of two shapes": (captured(0, 50) + captured(100, 250, first=WIDE), "nothing shows which of their shapes"),
    "a smaller batch": ([span("capture_2_DECODE", -1, 40), *captured(0, 50)], "their batch size is not its own"),
    "no capture": ([op("aten::mm", 0, 9, **MM), launch(2, 5), kernel(3, 8, 5)], "has no capture of a graph"),
    "CUDA, as many kernels but others": (captured(0, 50, (None, None, None)), r"a replay of 3 kernels"),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_capture_that_does_not_fit_is_one_clear_line(joined, problem):
    captures, message = PROBLEMS[problem]
    names = ("Cijk_1", "Cijk_2", "add") if "CUDA" not in problem else ("add", "rotary", "Cijk_1")
    with pytest.raises(ValueError, match=message) as error:
        joined([span("step[DECODE bs=4]", -1, 60), *replayed(0, 1, names)], captures)
    assert "\n" not in str(error.value)
    assert "capture.json" in str(error.value)


def test_a_trace_without_replays_takes_no_capture(joined):
    with pytest.raises(ValueError, match=r"replay\.json has no replay of a graph"):
        joined([op("aten::mm", 0, 9, **MM), launch(2, 5), kernel(3, 8, 5)], captured(0, 50))


def test_replays_that_fit_nothing_are_counted_and_listed(joined):
    session = joined(replayed(0, 1) + replayed(50, 2, ("x", "y", "z")), captured(0, 50))
    assert "3 of 6 kernels" in session.notes[0]
    assert "1 replay not: a replay of 3 kernels" in session.notes[0]
    assert {work.name for work in session.measurement.timeline.without_op} == {"x", "y", "z"}


def test_without_a_capture_kernels_are_listed_by_name(tmp_path):
    session = rl.read_trace(write(tmp_path / "replay.json", replayed(0, 1)))
    listed = [(work.name, round(work.seconds * 1e6)) for work in session.measurement.timeline.without_op]
    assert listed == [("Cijk_1", 5), ("add", 4), ("Cijk_2", 3)]


def test_a_decode_step_of_sglang(shown):
    name = "mi300x_sglang_qwen3-8b_decode"
    session = rl.read_trace(shown / f"{name}_graph.json.gz", shown / f"{name}_capture_bs32.json.gz")
    # 36 layers of 15 kernels, and before and after them embedding, norm, logits and their copy to float32
    assert "544 of 544 kernels, copies and fills of 1 replay joined" in session.notes[0]
    assert session.measurement.timeline.no_host_op_s < 20e-6
    assert sum(one.signature.name == "aten::mm" for one in session.records) == 36 * 4 + 1
    (attention,) = [each for each in session.signatures if "paged_attention" in each.name]
    lengths = {"kv_tokens": 32785, "kv_width": 1024, "visible_pairs": 32785}
    assert dict(attention.attributes) == {"cache_dtype": "bfloat16", **lengths}
    assert not rl.analyze(session).contradictions
