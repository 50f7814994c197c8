"""CUDA graphs from torch's log of them. No GPU is needed: the lines are those of torch's own functions, and of the
formats of ``torch/_inductor/cudagraph_trees.py`` of torch 2.13.
"""

from __future__ import annotations

import pytest
import torch
from explained import X, explanation

from rooflight.compiling.explain.breaks import cuda_graphs
from rooflight.compiling.explain.tables import report_of
from rooflight.compiling.explain.trace import listening

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
    import msgspec

    asked = msgspec.structs.replace(found, cuda_graphs_asked=True)
    assert any("none was recorded: there is no GPU here" in note for note in report_of(asked).notes)
    events = msgspec.structs.replace(asked, cuda_graphs=cuda_graphs(LINES))
    table = report_of(events).table("cuda_graphs")
    assert table is not None
    assert table.values("what") == ("recorded", "recorded again", "recorded")
