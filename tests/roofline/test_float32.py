import pytest
from builders import op, spec
from hypothesis import given
from hypothesis import strategies as st
from sessions import Call, session_of

import rooflight as rl
from rooflight.costs.cost import Float32Kind
from rooflight.costs.registry import traits_of
from rooflight.devices import get, names
from rooflight.hardware.devices.spec import DeviceSpec, Roofs
from rooflight.records.dtypes import FLOAT32_DEFAULTS, float32_fact
from rooflight.roofline.bound import float32_rules
from rooflight.roofline.tables.report import report_of

H100 = get("H100-SXM5-80GB")
MATMUL, CONV, RNN, ATTENTION = Float32Kind


def precisions(device, **settings):
    environment = {float32_fact(name.replace("_", ".")): value for name, value in settings.items()}
    rules = float32_rules(environment, device)
    return [rules.by_kind[kind].precision for kind in Float32Kind]


def test_cudnn_uses_tf32_unless_switched_off_and_cublas_only_where_allowed():
    assert precisions(H100) == ["float32", "tfloat32", "tfloat32", "3xtf32"]
    assert precisions(H100, cudnn_conv="ieee") == ["float32", "float32", "tfloat32", "3xtf32"]
    assert precisions(H100, cudnn_rnn="ieee") == ["float32", "tfloat32", "float32", "3xtf32"]
    assert precisions(H100, cuda_matmul="tf32") == ["tfloat32"] * 4


def test_a_device_without_tf32_computes_in_float32():
    for name in ("T4", "V100-SXM2-16GB"):
        assert precisions(get(name), cuda_matmul="tf32") == ["float32"] * 4


def test_miopen_computes_in_float32_and_hipblaslt_in_xf32_where_allowed():
    mi300x, mi250x = get("MI300X"), get("MI250X")
    assert precisions(mi300x, cudnn_conv="tf32", cudnn_rnn="tf32") == ["float32"] * 4
    assert precisions(mi300x, cuda_matmul="tf32") == ["tfloat32", "float32", "float32", "tfloat32"]
    assert precisions(mi250x, cuda_matmul="tf32") == ["float32"] * 4


def test_a_cpu_goes_by_onednn_s_settings():
    roofs = Roofs(source="by hand", matrix_flops_per_s={"float32": 1e11, "bfloat16": 2e11})
    cpu = DeviceSpec(name="cpu", vendor="", architecture="", kind="cpu", calibrated=roofs)
    assert precisions(cpu, cudnn_conv="tf32", cuda_matmul="tf32") == ["float32"] * 4
    # torch makes a GRU of products, so the faster of two settings governs recurrent networks
    assert precisions(cpu, mkldnn_matmul="bf16") == ["bfloat16", "float32", "bfloat16", "bfloat16"]
    assert precisions(cpu, mkldnn_rnn="bf16") == ["float32", "float32", "bfloat16", "float32"]
    assert precisions(cpu, mkldnn_conv="bf16") == ["float32", "bfloat16", "float32", "float32"]
    assert precisions(cpu, mkldnn_rnn="tf32") == ["float32"] * 4  # no TF32 peak


def test_xla_makes_float32_products_of_bfloat16_ones():
    assert precisions(get("TPU-v5p")) == ["bfloat16"] * 4


@given(
    st.sampled_from(names()), st.dictionaries(st.sampled_from([*FLOAT32_DEFAULTS]), st.sampled_from(["ieee", "tf32"]))
)
def test_a_rule_never_lowers_the_peak_and_allowing_more_never_raises_the_bound(name, settings):
    device = get(name)
    found, most = ({**settings}, {**settings, **dict.fromkeys(FLOAT32_DEFAULTS, "tf32")})
    for kind in Float32Kind:
        environments = ({float32_fact(key): value for key, value in each.items()} for each in (found, most))
        rules = [float32_rules(environment, device).by_kind[kind] for environment in environments]
        peaks = [device.matrix_peak(rule.precision) for rule in rules]
        if device.matrix_peak("float32") is not None:
            assert device.matrix_peak("float32") <= peaks[0] <= peaks[1]


def test_ops_declare_which_setting_governs_them():
    assert traits_of("aten::mm").float32 is MATMUL
    assert traits_of("aten::convolution").float32 is CONV
    assert traits_of("aten::convolution_backward").float32 is CONV
    assert traits_of("aten::_cudnn_rnn").float32 is RNN
    assert traits_of("aten::lstm").float32 is RNN
    assert traits_of("aten::scaled_dot_product_attention").float32 is ATTENTION
    assert traits_of("aten::_scaled_dot_product_efficient_attention_backward").float32 is ATTENTION
    assert traits_of("nobody::knows").float32 is MATMUL


def convolution(dtype="float32"):
    x, weight, out = (spec(shape, dtype) for shape in ((64, 256, 58, 58), (256, 256, 3, 3), (64, 256, 56, 56)))
    return op("aten::convolution", {"input": x, "weight": weight}, [out])


def product():
    a, b, out = (spec((4096, 4096)) for _ in range(3))
    return op("aten::mm", {"self": a, "mat2": b}, [out])


def test_convolutions_and_products_of_one_session_have_peaks_of_their_own():
    analysis = rl.analyze(session_of([Call(op=convolution()), Call(op=product())]), "H100-SXM5-80GB")
    bounds = {operation.signature.name: operation.bound for operation in analysis.operations}
    # 2 * (64 * 256 * 56 * 56) * (256 * 9) = 2.368e11 FLOPs at 494.7 TFLOP/s; 2 * 4096^3 = 1.374e11 at 66.9 TFLOP/s
    conv_s, mm_s = 2 * 64 * 256 * 56**2 * 256 * 9 / 494.7e12, 2 * 4096**3 / 66.9e12
    assert bounds["aten::convolution"].compute_s == pytest.approx(conv_s)
    assert bounds["aten::mm"].compute_s == pytest.approx(mm_s)
    assert analysis.program.program_bound_s == pytest.approx(conv_s + mm_s)


def test_the_report_says_at_which_precision_float32_work_is_bounded():
    report = report_of(rl.analyze(session_of([Call(op=convolution()), Call(op=product())]), "H100-SXM5-80GB"))
    (note,) = [note for note in report.notes if "float32 work" in note]
    assert note == (
        "float32 work is bounded as follows: matrix products at the float32 peak "
        "(torch.backends.cuda.matmul.fp32_precision is ieee), "
        "convolutions at the tfloat32 peak (torch.backends.cudnn.conv.fp32_precision is tf32)."
    )
    half = report_of(rl.analyze(session_of([Call(op=convolution("bfloat16"))]), "H100-SXM5-80GB"))
    assert not [note for note in half.notes if "float32 work" in note]


def test_three_tf32_products_make_one_of_float32():
    assert H100.matrix_peak("3xtf32") == pytest.approx(494.7e12 / 3)
    assert get("T4").matrix_peak("3xtf32") == get("T4").matrix_peak("float32") == 8.1e12
