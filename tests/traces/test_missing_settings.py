"""Settings that traces of older versions leave out, where shapes and kernels show them, and ops that torch had once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_traces import kernel, launch, op

from rooflight.costs.registry import cost_of
from rooflight.sources.traces.ops.context import dtypes_of_kernel, windows

CONV = ["float", "float", "", "GenericList", "GenericList", "GenericList", "Bool", "GenericList", "Int"]


def convolution(x, weight, start=0):
    return op("aten::convolution", start, start + 10, dims=[x, weight, *[[]] * 7], types=CONV)


def following(shape, start=20):
    return op("aten::relu", start, start + 5, dims=[shape], types=["float"])


@pytest.fixture
def launched(read):
    """Reads the records of ops, each of which launches a kernel of 5 µs."""

    def launched(*events):
        launches = [launch(event["ts"] + 1, 100 + n) for n, event in enumerate(events)]
        kernels = [kernel(100 * n, 100 * n + 5, 100 + n) for n in range(len(events))]
        return list(read(*events, *launches, *kernels).records)

    return launched


@pytest.mark.parametrize(
    ("x", "weight", "result", "flops", "groups"),
    [
        # 2 * B 2 * Cout 8 * 16 * 16 * Cin 3 * 3 * 3 = 221184
        ([2, 3, 32, 32], [8, 3, 3, 3], [2, 8, 16, 16], 221184, 1),
        ([1, 8, 4, 4], [8, 1, 3, 3], [1, 8, 4, 4], 2 * 8 * 16 * 9, 8),
    ],
)
def test_a_convolutions_settings_follow_from_what_the_next_op_takes(launched, x, weight, result, flops, groups):
    found = launched(convolution(x, weight), following(result))[0].signature
    assert found.outputs[0].shape == tuple(result)
    assert cost_of(found).matrix_flops == flops
    assert dict(found.attributes)["groups"] == groups


@pytest.mark.parametrize(
    ("taken", "reason"),
    [
        ([2, 8, 99, 99], "none makes 99 of 32 with 3 taps"),  # larger than any padding makes it
        ([2, 9, 16, 16], "no op after it shows the shape of its result"),  # another number of channels
        ([2, 8], "no op after it shows the shape of its result"),
    ],
)
def test_a_result_that_no_setting_makes_is_not_taken(launched, taken, reason):
    records = launched(convolution([2, 3, 32, 32], [8, 3, 3, 3]), following(taken))
    assert reason in cost_of(records[0].signature).reason


@pytest.mark.parametrize(("inside", "flops"), [("_weight", 221184), ("", 0)])
def test_the_backward_of_2021_is_that_of_today(read, inside, flops):
    shapes = [[2, 3, 32, 32], [2, 8, 16, 16], [8, 3, 3, 3]]
    kinds = ["float", "float", "float", "GenericList", "GenericList", "GenericList", "Int", "Bool", "Bool", "Bool"]
    outer = op("aten::cudnn_convolution_backward", 0, 30, dims=[*shapes, *[[]] * 7], types=kinds)
    part = op(f"aten::cudnn_convolution_backward{inside}", 10, 20, dims=[[]], types=["GenericList"])
    (one,) = read(outer, *[part] * bool(inside), launch(11, 1), kernel(12, 20, 1)).records
    assert one.signature.name == "aten::convolution_backward"
    # if only the weight's gradient ran: one forward's worth, 2 * 2 * 8 * 16 * 16 * 27
    assert cost_of(one.signature).matrix_flops == flops


@given(st.integers(1, 64), st.integers(1, 7), st.sampled_from([1, 2, 4]), st.integers(1, 4), st.integers(0, 3))
def test_settings_found_give_the_shape_that_was_seen(size, taps, dilation, stride, padding):
    reach = dilation * (taps - 1)
    padding = min(padding, reach)
    if size + 2 * padding <= reach:
        return
    out = (size + 2 * padding - reach - 1) // stride + 1
    found = next(windows(size, taps, out), None)
    assert found is not None
    stride, padding, dilation = found
    assert (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1 == out


def test_layer_norms_of_old_traces_have_the_weights_shape(launched):
    kinds = ["float", "", "float", "float", "Scalar"]
    (one,) = launched(op("aten::native_layer_norm", 0, 10, dims=[[4, 512], [], [512], [512], []], types=kinds))
    assert [tensor.shape for tensor in one.signature.outputs] == [(4, 512), (4, 1), (4, 1)]


def test_a_pooling_has_the_smallest_windows_that_fit(launched):
    kinds = ["float", "GenericList", "GenericList", "GenericList", "GenericList", "Bool"]
    pool = op("aten::max_pool2d_with_indices", 0, 10, dims=[[2, 4, 8, 8], *[[]] * 5], types=kinds)
    found = launched(pool, following([2, 4, 4, 4]))[0].signature
    assert found.outputs[0].shape == (2, 4, 4, 4)
    assert dict(found.attributes)["kernel_size"] == (2, 2)


WITHOUT_COST = [  # ops with settings that change no cost
    ("cudnn_batch_norm", [[2, 8, 4, 4], *[[8]] * 4, [], [], []], [*["float"] * 5, "Bool", "Double", "Double"]),
    ("threshold_backward", [[8], [8], []], ["float", "float", "Int"]),
    ("_log_softmax", [[2, 8], [], []], ["float", "Int", "Bool"]),
    ("_log_softmax_backward_data", [[2, 8], [2, 8], [], [2, 8]], ["float", "float", "Int", "float"]),
    ("clamp", [[8], [], []], ["float", "Scalar", "Scalar"]),
]


@pytest.mark.parametrize(("name", "dims", "types"), WITHOUT_COST, ids=[name for name, _, _ in WITHOUT_COST])
def test_settings_that_change_no_cost_take_any_value(launched, name, dims, types):
    (one,) = launched(op(f"aten::{name}", 0, 10, dims=dims, types=types))
    assert one.signature.incomplete == ""


def test_a_setting_of_a_new_trace_is_never_inferred(launched):
    # torch 2.2 and later has settings: one that is missing there has its default
    event = convolution([2, 3, 32, 32], [8, 3, 3, 3])
    event["args"]["Concrete Inputs"] = ["", "", "", "[4, 4]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    assert launched(event, following([2, 8, 16, 16]))[0].signature.outputs[0].shape == (2, 8, 8, 8)


CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy"
FOREACH = "void multi_tensor_apply_kernel<TensorListMetadata<2>, "


@pytest.mark.parametrize(
    ("kernel_name", "dtypes"),
    [
        (f"{CAT}<float, unsigned int, 2, 128, 1>(float*)", ("float32",)),
        (f"{CAT}_contig<at::native::(anonymous namespace)::OpaqueType<8u>, 1>", ("int64", "float64", "complex64")),
        (f"{FOREACH}BinaryOpListAlphaFunctor<c10::BFloat16, 2, 2, 0>, std::plus<float>, float>", ("bfloat16",)),
        (f"{FOREACH}CopyFunctor<int, long, 2, 1, 1>, Copy<int, long> >", ("int32",)),
        (f"{FOREACH}CopyFunctor<long, int, 2, 1, 1>, Copy<long, int> >", ("int32",)),
        ("ampere_sgemm_128x64_tn", ()),
    ],
)
def test_kernels_show_the_dtype_of_lists(kernel_name, dtypes):
    assert dtypes_of_kernel(kernel_name) == dtypes


@pytest.mark.parametrize(
    ("kernels", "dtypes"),
    [
        (["OpaqueType<2u>, unsigned int, 4"], {"float16"}),  # the first of this size: which one changes no cost
        (["c10::BFloat16, unsigned int, 4", "OpaqueType<2u>, unsigned int, 4"], {"bfloat16"}),  # what both allow
    ],
)
def test_a_cat_has_a_dtype_that_its_kernels_allow(read, kernels, dtypes):
    cat = op("aten::cat", 0, 10, dims=[[[4, 8], [4, 8]], []], types=["TensorList", "Scalar"])
    names = [f"void CatArrayBatchedCopy<{kernel}, 64, 64>()" for kernel in kernels]
    work = [each for n, name in enumerate(names) for each in (launch(n, n), kernel(10 + n, 11 + n, n, name=name))]
    (one,) = read(cat, *work).records
    assert {tensor.dtype for tensor in one.signature.inputs} == dtypes
    assert cost_of(one.signature).bytes_read == 2 * 32 * 2


@pytest.mark.parametrize(
    ("kernel_name", "category", "dtype"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "kernel", "float32"),
        ("Memcpy DtoD (Device -> Device)", "gpu_memcpy", "int64"),  # memory that was copied as it is
        ("k", "kernel", None),
    ],
)
def test_a_dtype_that_was_given_and_left_out_is_that_of_the_kernel(read, kernel_name, category, dtype):
    kinds = ["long", "Scalar", "Scalar", "", "", ""]
    like = op("aten::zeros_like", 0, 10, dims=[[100], *[[]] * 5], types=kinds)
    (one,) = read(like, launch(1, 1), kernel(2, 9, 1, name=kernel_name, cat=category)).records
    if dtype is None:
        assert cost_of(one.signature).reason == "the trace does not contain its dtype"
    else:
        assert one.signature.outputs[0].dtype == dtype
        assert cost_of(one.signature).bytes_written == one.signature.outputs[0].nbytes


@pytest.mark.parametrize(
    ("kernel_name", "share"),
    [
        ("volta_scudnn_128x64_relu_interior_nn_v1", 1),
        ("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", 0.25),  # 6 * 6 products for 16 results, not 144
        ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1", 0.25),
        ("void fft2d_r2c_32x32<float, false, 1u, true>(float2*)", 0),
    ],
)
def test_an_algorithm_with_fewer_multiplications_is_bounded_by_these(read, kernel_name, share):
    events = [convolution([2, 3, 32, 32], [8, 3, 3, 3]), following([2, 8, 32, 32]), launch(1, 1)]
    (one,) = read(*events, kernel(100, 110, 1, name=kernel_name)).records
    assert cost_of(one.signature).matrix_flops == 2 * 2 * 8 * 32 * 32 * 27 * share
