"""Printed graphs: sizes with symbols, and texts that torch never wrote."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooflight.compiling.explaining.graph_text import frames, function_name, printed, resumed_at, sized
from rooflight.compiling.explaining.guards import guard_s, guards, readable


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
