"""Mixed precision on meta tensors and for a GPU that is not there."""

import warnings

import pytest
import torch
from torch import nn
from torch.amp.autocast_mode import autocast
from torch.nn import functional
from torch.optim import optimizer

import rooflight as rl
from rooflight.sources.capture.record import autocast as emulated

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, whose autocast is torch's own")

HALF, FULL = torch.bfloat16, torch.float32


def _off(x, y):
    kind = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
    with torch.autocast(kind, enabled=False):
        return x @ y


CALLS = {
    "product": (lambda x, y: x @ y, HALF, HALF),
    "linear": (functional.linear, HALF, HALF),
    "attention": (lambda x, y: functional.scaled_dot_product_attention(x[None], y[None], y[None]), HALF, HALF),
    "cat": (lambda x, y: torch.cat([x @ y, x]), FULL, FULL),
    "softmax of a half": (lambda x, y: torch.softmax(x @ y, 0), FULL, HALF),
    "softmax in a dtype": (lambda x, y: torch.softmax(x @ y, 0, dtype=HALF), HALF, HALF),
    "sum of a half": (lambda x, y: (x @ y).sum(), FULL, HALF),
    "norm of a half": (lambda x, y: torch.norm(x @ y), FULL, HALF),
    "exp of a half": (lambda x, y: (x @ y).exp(), FULL, HALF),
    "layer norm": (lambda x, y: functional.layer_norm(x @ y, (4,)), FULL, HALF),
    "loss": (lambda x, y: functional.mse_loss(x @ y, y), FULL, FULL),
    "float64 stays": (lambda x, y: x.double() @ y.double(), torch.float64, torch.float64),
    "integers stay": (lambda x, y: x.long() + y.long(), torch.int64, torch.int64),
    "promoted": (lambda x, y: torch.addcmul(x @ y, x @ y, y), FULL, FULL),
    "promoted of halves": (lambda x, y: torch.dot((x @ y)[0], (x @ y)[1]), HALF, HALF),
    "off inside": (_off, FULL, FULL),
    "in place": (lambda x, y: (x @ y).relu_(), HALF, HALF),
}


def dtype(call, kind, place):
    with torch.autocast(kind, HALF):
        return call(torch.ones(4, 4, device=place), torch.ones(4, 4, device=place)).dtype


@pytest.mark.parametrize("name", CALLS)
def test_meta_tensors_are_cast_as_torch_casts_on_a_cpu(name):
    call, _, expected = CALLS[name]
    assert dtype(call, "cpu", "cpu") == expected  # torch's own
    with rl.record():
        assert dtype(call, "cpu", "meta") == expected


@pytest.mark.parametrize("place", ["cpu", "meta"])
@pytest.mark.parametrize("name", CALLS)
def test_a_program_for_a_gpu_is_cast_as_on_one(name, place):
    call, expected, _ = CALLS[name]  # autocast_mode.h: which list for CUDA has the op
    with rl.as_on_gpu(), rl.record():
        assert dtype(call, "cuda", place) == expected


def test_the_rules_name_ops_that_torch_has_rules_for():
    of_both = emulated._ruled("cuda") | emulated._ruled("cpu")
    named = emulated._LOWERED | emulated._RESULT_IN_FLOAT32 | set(emulated._NORMS)
    assert named <= of_both
    for kind, names in emulated._PROMOTED.items():
        assert names <= emulated._ruled(kind)


def test_gradients_keep_the_dtype_of_their_parameters_and_weights_are_cast_once():
    with rl.as_on_gpu(), rl.record() as recording:
        layer = nn.Linear(8, 8)
        x = torch.ones(2, 8)
        with torch.autocast("cuda", HALF):
            loss = (layer(x) + layer(x)).sum()
        loss.backward()
    assert layer.weight.grad.dtype is FULL
    records = list(recording.session.records)
    products = [record for record in records if record.signature.name in ("aten::addmm", "aten::mm")]
    assert len(products) == 4
    assert {tensor.dtype for record in products for tensor in record.signature.inputs} == {"bfloat16"}
    names = [record.signature.name for record in records]
    assert names[: names.index("aten::sum")].count("aten::_to_copy") == 4  # x twice, weight and bias once


def test_values_are_those_of_torch_on_the_cpu():
    torch.manual_seed(0)
    x, y = torch.randn(16, 16), torch.randn(16, 16)
    with torch.autocast("cpu", HALF):
        expected = x @ y
    with rl.as_on_gpu(), torch.autocast("cuda", HALF):
        assert torch.equal(x @ y, expected)


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_a_scaled_step_takes_foreach_kernels_as_on_a_gpu(place):
    with rl.as_on_gpu(), rl.record() as recording:
        layer = nn.Linear(8, 8).to(place)
        adamw, scaler = torch.optim.AdamW(layer.parameters()), torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", torch.float16):
            loss = layer(torch.ones(2, 8, device=place)).sum()
        scaler.scale(loss).backward()
        scaler.step(adamw)
        scaler.update()
    names = [record.signature.name for record in recording.session.records]
    assert "aten::_amp_foreach_non_finite_check_and_unscale_" in names
    assert "aten::_foreach_addcdiv_" in names
    assert "aten::addcdiv_" not in names


def test_a_recording_without_it_says_that_autocast_was_off():
    with warnings.catch_warnings(), rl.record() as recording:
        warnings.simplefilter("ignore")
        with torch.autocast("cuda", HALF):
            torch.ones(2, 2) @ torch.ones(2, 2)
    (note,) = recording.session.notes
    assert "as_on_gpu" in note
    with rl.record() as recording, torch.autocast("cpu", HALF):
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert recording.session.notes == ()


def test_torch_is_as_before_also_after_an_error():
    def state():
        return (autocast.__enter__, autocast.__exit__, torch.cuda.amp.common.amp_definitely_not_available,
                torch.cuda.is_bf16_supported, torch.amp.GradScaler._maybe_opt_step,
                optimizer._get_foreach_kernels_supported_devices)  # fmt: skip

    before = state()
    with pytest.raises(ZeroDivisionError), rl.as_on_gpu(), rl.record(), torch.autocast("cuda", HALF):
        raise ZeroDivisionError
    assert state() == before
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", "AutocastPrivateUse1")
    assert not torch._C._dispatch_tls_is_dispatch_key_included("AutocastPrivateUse1")
    assert torch._C._dispatch_tls_is_dispatch_key_excluded("AutocastPrivateUse1")
    x = torch.ones(2, 2, device="meta")
    with torch.autocast("cpu", HALF):
        assert (x @ x).dtype is FULL


def test_a_context_outlives_the_recording_that_it_began_in():
    x = torch.ones(2, 2, device="meta")
    with torch.autocast("cpu", HALF):
        with rl.record(), torch.autocast("cpu", HALF):
            assert (x @ x).dtype is HALF
        torch.relu(x)
    recording = rl.record()
    recording.__enter__()
    with torch.autocast("cpu", HALF):
        recording.__exit__()
        assert (torch.relu(x) @ x).dtype is FULL  # torch's own again
    torch.relu(x)
    assert not torch._C._dispatch_tls_is_dispatch_key_included("AutocastPrivateUse1")
    assert torch._C._dispatch_tls_is_dispatch_key_excluded("AutocastPrivateUse1")


SCRIPT = """
import torch
from torch import nn

def make_step():
    layers, context = nn.Sequential(*(nn.Linear(256, 256) for _ in range(3))), torch.autocast("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(layers.parameters())

    def step():
        with context:
            loss = layers(torch.ones(32, 256)).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
"""


def test_a_users_step_is_analysed_in_the_precision_it_asks_for(tmp_path):
    from rooflight.front.options import RunOptions
    from rooflight.front.targets import analyze_target

    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    analysis, _ = analyze_target(f"{path}:make_step", RunOptions(), device="H100-SXM5-80GB")
    ops = {operation.signature.name: operation for operation in analysis.operations}
    assert {tensor.dtype for tensor in ops["aten::mm"].signature.inputs} == {"bfloat16"}
    steps = [operation for name, operation in ops.items() if "addcdiv" in name]
    assert [operation.calls for operation in steps] == [1]  # one kernel for all parameters


@pytest.mark.parametrize(
    ("device", "slow", "said"),
    [("H100-SXM5-80GB", True, 'with torch.device("meta"):'), ("H100-SXM5-80GB", False, ""), ("cpu", True, "minute")],
)
def test_a_slow_step_says_how_often_it_runs_and_how_nothing_need_be_computed(
    tmp_path, monkeypatch, caplog, device, slow, said
):
    from rooflight.front import targets
    from rooflight.front.device import without_calibrating
    from rooflight.front.options import RunOptions

    path = tmp_path / "train.py"
    wait = "\n        time.sleep(0.05)" * slow
    script = SCRIPT.replace("cuda", "cpu") if device == "cpu" else SCRIPT
    path.write_text("import time\n" + script.replace("    def step():", f"    def step():{wait}"))
    for measured in (False, True):
        monkeypatch.setitem(targets._SILENT_S, measured, 0.03 if slow else 60.0)
    with without_calibrating():
        targets.analyze_target(f"{path}:make_step", RunOptions(), device=device)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == slow  # of several runs that each take longer
    assert all(said in text for text in warned)
