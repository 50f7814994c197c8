"""Profiles of early 2021 (torch 1.8): sizes under another key, no dtypes, and nodes of autograd without numbers."""

from kineto_traces import kernel, launch, write

import rooflight as rl
from rooflight.records.record import Direction


def operator(name, start, stop, dims, thread=1, number=1):
    args = {"Input dims": dims, "Input type": [], "Input names": [], "Output dims": [], "External id": number}
    return {"ph": "X", "cat": "Operator", "name": name, "pid": 1, "tid": str(thread), "ts": start, "dur": stop - start,
            "args": args}  # fmt: skip


def ran(at, number, name):
    return [
        {**launch(at, number), "cat": "Runtime"},
        {**kernel(at + 1, at + 5, number, name=name), "cat": "Kernel"},
    ]


def test_sizes_and_dtypes_are_read(tmp_path):
    events = [operator("aten::mm", 0, 10, [[4, 8], [8, 2]]), *ran(2, 5, "volta_sgemm_32x32_nn")]
    session = rl.read_trace(write(tmp_path / "trace.json", events))
    (record,) = session.records
    assert [(each.shape, each.dtype) for each in record.signature.inputs] == [((4, 8), "float32"), ((8, 2), "float32")]
    assert rl.analyze(session).totals.matrix_flops == 128  # 2 * 4 * 8 * 2
    assert any("notes no dtypes" in note for note in session.notes)


def test_what_runs_in_a_node_of_autograd_is_the_backward(tmp_path):
    x, w, dy = [2, 3, 8, 8], [4, 3, 3, 3], [2, 4, 6, 6]
    events = [
        operator("aten::conv2d", 0, 10, [x, w, [], [], [], [], []]),
        operator("aten::convolution", 1, 9, [x, w, *[[]] * 7]),
        *ran(2, 5, "volta_sgemm_32x32_nn"),
        operator("CudnnConvolutionBackward", 20, 40, [dy], thread=2),
        operator("aten::cudnn_convolution_backward", 21, 39, [x, dy, w, *[[]] * 8], thread=2),
        operator("aten::cudnn_convolution_backward", 22, 38, [x, dy, w, *[[]] * 8], thread=2),
        operator("aten::cudnn_convolution_backward_input", 23, 28, [[], dy, w, *[[]] * 7], thread=2),
        {**launch(24, 6, thread=2), "cat": "Runtime"},
        {**kernel(25, 27, 6, name="dgrad_sgemm"), "cat": "Kernel"},
        operator("aten::cudnn_convolution_backward_weight", 30, 36, [w, dy, x, *[[]] * 7], thread=2),
        {**launch(31, 7, thread=2), "cat": "Runtime"},
        {**kernel(32, 34, 7, name="wgrad_sgemm"), "cat": "Kernel"},
    ]
    session = rl.read_trace(write(tmp_path / "trace.json", events))
    directions = {one.signature.name: one.direction for one in session.records}
    assert directions == {
        "aten::convolution": Direction.FORWARD,
        "aten::convolution_backward": Direction.BACKWARD,
    }
    flops = {one.name: one.cost.matrix_flops for one in rl.analyze(session).operations}
    forward = 2 * 2 * 4 * 6 * 6 * 3 * 3 * 3
    assert flops == {"aten::convolution": forward, "aten::convolution_backward": 2 * forward}
