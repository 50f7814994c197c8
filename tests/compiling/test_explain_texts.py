"""Texts of torch: printed graphs with symbolic sizes, lines of its logs, and what it never wrote.

For CUDA graphs no GPU is needed: the lines are those of torch's own functions, and of the formats of
``torch/_inductor/cudagraph_trees.py`` of torch 2.13.
"""

from __future__ import annotations

import msgspec
import pytest
import torch
from explained import X, explanation
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.studies.compiling.explain.breaks import (
    cuda_graphs,
    guard_s,
    guards,
    logged_breaks,
    logged_recompile,
    readable,
)
from rooflight.studies.compiling.explain.graph_text import frames, function_name, printed, resumed_at, sized
from rooflight.studies.compiling.explain.kernels import generated_calls
from rooflight.studies.compiling.explain.tables import report_of
from rooflight.studies.compiling.explain.trace import listening


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("f32[4, 8][8, 1]cpu", ("f32", (4, 8), 128)),
        ("b8[4][1]cuda:0", ("b8", (4,), 4)),
        ("f32[][]cpu", ("f32", (), 4)),
        ("bf16[2*s7, 8][8, 1]cpu", ("bf16", (6, 8), 96)),
        ("i64[(s7//2) + 1][1]cpu", ("i64", (2,), 16)),
        ("f32[s9][1]cpu", ("f32", (None,), None)),
        ("f32[s7**9**9][1]cpu", ("f32", (None,), None)),
        ("f32[__import__('os')][1]cpu", ("f32", (None,), None)),
        ("new8[4][1]cpu", ("new8", (4,), None)),
        ("Sym(s7)", ("", (), 0)),
        ("", ("", (), 0)),
    ],
)
def test_sizes(text, found) -> None:
    assert sized(text, {"s7": 3}) == found


def test_a_graph_with_operators_calls_and_results() -> None:
    graph = printed(
        "class GraphModule(torch.nn.Module):\n"
        '    def forward(self, L_x_: "f32[4]"):\n'
        "        l_x_ = L_x_\n"
        "        # File: /a b/f.py:3 in f, code: y = x @ x\n"
        '        y: "f32[4][1]cpu" = l_x_ @ l_x_;  l_x_ = None\n'
        '        z: "f32[4][1]cpu" = torch.relu(y)\n'
        '        w: "f32[4][1]cpu" = z.view(2, 2)\n'
        "        v = torch.ops.aten.var_mean.correction(w, [0]);  w = None\n"
        '        m: "f32[2][1]cpu" = v[0]\n'
        '        n: "f32[2][1]cpu" = -m\n'
        "        return (n,)\n"
    )
    assert [line.op for line in graph.lines] == ["matmul", "torch.relu", "view", "aten::var_mean", "getitem", "neg"]
    assert graph.lines[0].place is not None
    assert (graph.lines[0].place.file, graph.lines[0].place.line) == ("/a b/f.py", 3)


def test_names_of_the_rest_of_a_function() -> None:
    assert function_name("torch_dynamo_resume_in_my_f_at_12") == "my_f"
    assert resumed_at("torch_dynamo_resume_in_my_f_at_12") == 12
    assert (function_name("f"), resumed_at("f")) == ("f", None)
    assert readable("L['x'].size()[0] == L['self'].n") == "x.size()[0] == self.n"


@given(st.text(max_size=400))
@settings(deadline=None)
def test_any_text_is_read(text) -> None:
    printed(text)
    list(frames(text))
    guards(text)
    guard_s(text)
    sized(text, {})


_RECOMPILING = "Recompiling function torch_dynamo_resume_in_loss_at_12 in /a b/train.py:12\n    triggered by ...:\n"


@pytest.mark.parametrize(
    ("guard", "why"),
    [
        (
            "0/1: tensor 'x' size mismatch at index 0. expected 32, actual 48",
            "size of x, dimension 0 was 48, and 32 when it was compiled",
        ),
        ("0/0: k == 2     # x * k  # train.py:9 in f", "k was not 2, which it was compiled for"),
        ("0/0: not calls     # calls.append(None)", "len(calls) was not 0, which it was compiled for"),
        ("0/0: GLOBAL_STATE changed: grad_mode ", "grad_mode changed"),
        ("0/0: ___check_obj_id(f, 7)", "___check_obj_id(f, 7) changed"),
        ("", "what it depends on changed"),
    ],
)
def test_a_recompile_in_a_line(guard, why) -> None:
    assert logged_recompile(f"{_RECOMPILING}    - {guard}\n    - User stack trace:") == f"train.py:12, loss: {why}"


@settings(deadline=None)
@given(st.text(), st.text())
def test_logs_that_torch_never_wrote_are_told_in_some_way(head, rest) -> None:
    assert logged_recompile(f"{head}\n - {rest}")
    assert logged_breaks([head])
    assert generated_calls(head) == 0


def test_kernels_are_counted_by_their_calls_in_generated_code() -> None:
    code = (
        "cpp_fused_relu_0 = async_compile.cpp_pybinding(['const float*'], r'''\n"
        "void kernel() { cpp_fused_relu_0(1); }\n''')\n"
        "cpp_fused_sum_1 = async_compile.cpp_pybinding([], r'''\n''')\n"
        "async_compile.wait(globals())\n"
        "def call(args):\n"
        "    cpp_fused_relu_0(arg, buf0)\n"
        "    extern_kernels.mm(buf0, buf1)\n"
        "    cpp_fused_sum_1(buf0, buf1)\n"
        "    cpp_fused_relu_0(buf1, buf2)\n"
        "    triton_poi_fused_0.run(buf1)\n"
    )
    assert generated_calls(code) == 3  # relu twice, sum once; the triton kernel is not of this code
    assert generated_calls("triton_poi_fused_0 = async_compile.triton('triton_', '''\n''')\n" + code) == 4
    assert generated_calls("AOTInductorModel::run_impl() { cpp_fused_relu_0(); }") == 0


LINES = [
    "[0/0] Running warmup function=fn0, mode=INFERENCE",
    "[0/0] Recording cudagraph tree for graph without symints",
    "[0/0] Recording function=fn0, mode=INFERENCE, cuda_graph_id=0, inputs: [...]",
    "[0/0] Re-recording function=fn0, mode=INFERENCE, reason=static input data pointer changed.\n"
    "input name: primals_2. data pointer changed from 140 to 150. input stack trace: None\n",
    "[0/1] Recording cudagraph tree for symint key (4, 8)",
    "Checkpointing cuda caching allocator state. Number of checkpoints 1",
]


def test_recorded_and_recorded_again() -> None:
    first, again, dynamic = cuda_graphs(LINES)
    assert (first.what, first.id, first.reason) == ("recorded", "0/0", "graph without symints")
    assert (again.what, again.id) == ("recorded again", "0/0")
    assert again.reason.startswith("static input data pointer changed")
    assert "same tensors each time" in again.fix
    assert (dynamic.what, dynamic.id, dynamic.reason) == ("recorded", "0/1", "symint key (4, 8)")


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("mutated inputs (1 instances)", "mark_static_address"),
        ("cpu device (arg0_1). Found from : \n   File \"f.py\", line 3, in f\n", "on one GPU"),
        ("multiple devices: cuda:0, cuda:1", "on one GPU"),
        ("incompatible op aten._local_scalar_dense.default", "outside the compiled function"),
        ("graph with symbolic shapes inputs and config.triton.cudagraph_skip_dynamic_graphs=True.", "a few sizes"),
        ("cudagraph capture requires the caching allocator; current allocator is uncached", "caching allocator"),
        ("bisector", ""),
    ],
)  # fmt: skip
def test_skipped_with_torchs_own_function(reason, advice) -> None:
    from torch._inductor.cudagraph_utils import format_default_skip_message, log_cudagraph_skip_and_bump_counter

    with listening() as heard:
        log_cudagraph_skip_and_bump_counter(format_default_skip_message(reason))
    (event,) = cuda_graphs(heard.logged["cudagraphs"])
    assert (event.what, event.reason) == ("skipped", reason.strip())
    assert advice in event.fix


def test_many_sizes_with_torchs_own_function() -> None:
    from torch._inductor.cudagraph_utils import maybe_warning_due_to_dynamic_shape

    with listening() as heard:
        assert maybe_warning_due_to_dynamic_shape({(size,): None for size in range(60)}, (61,))
    (event,) = cuda_graphs(heard.logged["cudagraphs"])
    assert (event.what, event.reason) == ("warning", "61 distinct sizes, a graph for each")
    assert "pad inputs" in event.fix


@pytest.mark.parametrize("line", ["", "[", "[]", "[0/0] ", "skipping cudagraphs due to ", "reason=", "x" * 9999, "\n"])
def test_a_line_that_torch_never_wrote_is_no_event_or_has_no_reason(line) -> None:
    assert all(event.reason in line for event in cuda_graphs([line]))


@pytest.mark.skipif(torch.cuda.is_available(), reason="says that there is no GPU")
def test_a_report_says_why_none_was_recorded() -> None:
    found = explanation(torch.sin, (X,), backend="eager")
    assert not found.cuda_graphs_asked
    asked = msgspec.structs.replace(found, cuda_graphs_asked=True)
    assert any("none was recorded: there is no GPU here" in note for note in report_of(asked).notes)
    events = msgspec.structs.replace(asked, cuda_graphs=cuda_graphs(LINES))
    table = report_of(events).table("cuda_graphs")
    assert table is not None
    assert table.values("what") == ("recorded", "recorded again", "recorded")
