"""Recording, bounding and measuring on a GPU: the same counts as without one, and no bound beaten."""

import gc

import pytest

import rooflight as rl
from rooflight.hardware.machine.timing import CudaEvents, measure

pytestmark = pytest.mark.gpu

SLACK = 1.02  # event timers tick in half microseconds, clocks exceed those of a datasheet


def analysis_of(run, device, model=None):
    with rl.record(model) as recording:
        run()
    return rl.analyze(recording.session, device=device)


@pytest.fixture
def gpt2():
    pytest.importorskip("transformers")
    from rooflight.sources.workloads.targets import open_target

    def make(device: str):
        return open_target("gpt2", step="train", batch=1, seq=256, dtype="bfloat16", device=device)

    yield make
    gc.collect()


def test_a_training_step_has_the_flops_it_has_without_hardware(device, gpt2):
    totals = {}
    for place in ("meta", "cuda"):
        step = gpt2(place)
        step.run()  # optimizers make their state in the first step
        totals[place] = analysis_of(step.run, device, step.model).totals
    assert totals["cuda"].matrix_flops == totals["meta"].matrix_flops > 0
    print({place: total.vector_flops for place, total in totals.items()})


def test_a_measured_step_joins_its_kernels_and_beats_no_bound(device, gpt2):
    step = gpt2("cuda")
    step.run()
    with rl.record(step.model) as recording:
        step.run()
    session = rl.measure(recording.session, step.run, max_seconds=3.0)
    analysis = rl.analyze(session, device=device)
    totals = analysis.totals
    assert totals.measured_s is not None
    assert totals.op_bound_s <= totals.measured_s
    assert totals.ops_measured_s is not None
    assert totals.op_bound_s <= totals.ops_measured_s * SLACK
    # kernels of one stream do not overlap
    assert totals.ops_measured_s <= totals.measured_s * 1.10
    print(f"bound {totals.op_bound_s}, kernels {totals.ops_measured_s}, step {totals.measured_s}")
    print(analysis.contradictions)


LARGE = {
    "mm bf16": lambda torch, a, b: lambda: torch.mm(a, b),
    "add": lambda torch, a, b: lambda: torch.add(a, b),
    "gelu": lambda torch, a, b: lambda: torch.nn.functional.gelu(a),
    "softmax": lambda torch, a, b: lambda: torch.softmax(a, -1),
    "sum": lambda torch, a, b: a.sum,
    "transposed copy": lambda torch, a, b: lambda: a.t().contiguous(),
    "skinny mm": lambda torch, a, b: lambda: torch.mm(a[:16], b),
}


@pytest.mark.parametrize("name", LARGE)
def test_no_large_op_beats_its_bound(torch, device, name):
    # 512 MiB each: ten times the largest L2
    a, b = (torch.randn(16384, 16384, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    run = LARGE[name](torch, a, b)
    with torch.no_grad():
        bound_s = analysis_of(run, device).totals.op_bound_s
        took = measure(run, clock=CudaEvents(), box_s=0.5)
    print(f"{name}: {bound_s / took.minimum_s:.0%} of the bound's speed")
    assert 0 < bound_s <= took.minimum_s * SLACK


def test_recording_leaves_no_trace_on_the_device(torch):
    a = torch.randn(1024, 1024, device="cuda")
    before = torch.mm(a, a)
    with rl.record():
        during = torch.mm(a, a)
    assert torch.equal(before, during)
    assert torch.equal(before, torch.mm(a, a))
