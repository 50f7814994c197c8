"""Tracking on a GPU: spans from events, phases as NVTX ranges, and a captured graph."""

import pytest

import rooflight as rl
from rooflight.studies.tracking.loop import Tracker

pytestmark = pytest.mark.gpu

SLACK = 1.02  # event timers tick in half microseconds, clocks exceed those of a datasheet


@pytest.fixture
def model(torch):
    """Large enough that the device, not the host, sets the time."""
    nn = torch.nn
    layers = [nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096)]
    return nn.Sequential(*layers).to("cuda", torch.bfloat16)


@pytest.fixture
def given(torch):
    return torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)


class Writer:
    def __init__(self):
        self.rows = {}

    def log(self, scalars, step):
        self.rows[step] = scalars


def train(model, given, optimizer):
    with rl.phase("forward pass"):
        loss = model(given).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def test_spans_sum_to_the_step_and_beat_no_bound(torch, model, given, device):
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tracker, writer = Tracker(model, device=device, interval=0), Writer()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for step in range(1, 21):
        if step == 11:
            start.record()
        train(model, given, optimizer)
        tracker.log(step, writer)
    end.record()
    torch.cuda.synchronize()
    last = tracker.last_step
    tracker.close()
    assert last is not None
    assert not last.recorded
    rows = [row for step, row in writer.rows.items() if step > 10]
    assert len(rows) >= 5  # the last few may not have been read yet
    whole_s = start.elapsed_time(end) * 1e-3
    for row in rows:
        phases = [value for name, value in row.items() if name.startswith("sol_phase/") and name.endswith("/seconds")]
        assert sum(phases) == pytest.approx(row["sol/iteration_s"])
        assert row["sol/op_bound_s"] <= row["sol/iteration_s"] * SLACK
        # two products forward, and two gradients each but that of the input: 5 * 2 * 8192 * 4096 * 4096
        assert row["sol/matrix_flops"] == 5 * 2 * 8192 * 4096 * 4096
        assert row["sol_phase/forward pass/efficiency"] <= SLACK
        assert row["sol_layer/Linear/efficiency"] <= SLACK
    assert sum(row["sol/iteration_s"] for row in rows) <= whole_s * SLACK


def test_nothing_waits_for_the_device(torch, model, given, device):
    """With synchronisation forbidden, an iteration that is timed only still runs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tracker = Tracker(model, device=device, interval=0)
    for step in range(3):
        train(model, given, optimizer)
        tracker.log(step)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(3, 8):
            train(model, given, optimizer)
            tracker.log(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert tracker.running
    tracker.close()


def test_the_same_parameters_with_and_without_tracking(torch, device):
    def trained(track):
        torch.manual_seed(0)
        nn = torch.nn
        model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Linear(64, 64)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        tracker = Tracker(model, device=device, interval=0) if track else None
        for step in range(5):
            train(model, torch.ones(8, 64, device="cuda"), optimizer)
            if tracker is not None:
                tracker.log(step)
        if tracker is not None:
            assert tracker.running
            tracker.close()
        return [parameter.detach().clone() for parameter in model.parameters()], torch.cuda.get_rng_state()

    plain, tracked = trained(track=False), trained(track=True)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], tracked[0], strict=True))
    assert torch.equal(plain[1], tracked[1])


def test_a_checkpoint_is_timed_on_the_threads_that_run_it_again(torch, model, given, device):
    from torch.utils.checkpoint import checkpoint

    tracker = Tracker(model, device=device, interval=0)
    for step in range(4):
        checkpoint(model, given.requires_grad_(), use_reentrant=step % 2 == 0).square().mean().backward()
        tracker.log(step)
    torch.cuda.synchronize()
    assert tracker.running
    tracker.close()


def test_phases_are_nvtx_ranges(torch):
    from torch.profiler import ProfilerActivity, profile

    torch.ones(1, device="cuda")
    pushed = []
    nvtx = torch.cuda.nvtx
    push, pop = nvtx.range_push, nvtx.range_pop
    nvtx.range_push, nvtx.range_pop = lambda name: pushed.append(name) or push(name), pop
    try:
        with profile(activities=[ProfilerActivity.CUDA]), rl.phase("outer"), rl.sol_nvtx_range("inner"):
            torch.ones(1, device="cuda").neg()
    finally:
        nvtx.range_push, nvtx.range_pop = push, pop
    assert pushed == ["outer", "inner"]


@pytest.fixture
def captured(torch, model, given):
    """A forward pass in a graph, and what was recorded while it was captured."""
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                model(given)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with rl.record(model) as recording, torch.cuda.graph(graph):
            model(given)
    return graph, recording.session


def test_a_graph_has_the_structure_of_its_capture_and_the_time_of_its_replay(captured, device):
    graph, session = captured
    analysis = rl.analyze(rl.measure(session, graph.replay, max_seconds=2.0), device=device)
    totals = analysis.totals
    assert totals.matrix_flops == 2 * 2 * 8192 * 4096 * 4096
    assert totals.measured_s is not None
    assert totals.op_bound_s <= totals.measured_s * SLACK
    print(analysis.session.measurement.clock, totals.ops_measured_s)


def test_a_graph_captured_while_tracked_replays_as_without(torch, model, given, device):
    with torch.no_grad():
        expected = model(given)
        tracker = Tracker(model, device=device, interval=0)
        for step in range(3):
            model(given)
            tracker.log(step)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(given)
        for step in range(3, 6):
            graph.replay()
            tracker.log(step)
        torch.cuda.synchronize()
        assert tracker.running
        tracker.close()
        graph.replay()
        assert torch.allclose(out, expected)
