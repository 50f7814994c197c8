"""Convolutions in half precision, channels-last beside torch's default layout, by hand arithmetic."""

import pytest
import torch
from builders import op, spec

import rooflight as rl
from rooflight.prediction.work.layouts import channels_last_share

GPU = "RTX 3090"
SETTINGS = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": False, "output_padding": (0, 0)}


def last(shape):
    """The strides of a channels-last tensor."""
    _, channels, height, width = shape
    return (channels * height * width, 1, channels * width, channels)


def convolution(
    channels=64, out=64, taps=3, groups=1, dtype="float16", image_last=False, weight_last=False, side=56, stride=1
):
    x, w = (32, channels, side, side), (out, channels // groups, taps, taps)
    y = (32, out, *[(side - 1) // stride + 1] * 2)
    inputs = {
        "input": spec(x, dtype, strides=last(x) if image_last else None),
        "weight": spec(w, dtype, strides=last(w) if weight_last else None),
    }
    settings = {**SETTINGS, "padding": (taps // 2, taps // 2), "groups": groups, "stride": (stride, stride)}
    return op("aten::convolution", inputs, [spec(y, dtype)], **settings)


@pytest.fixture(scope="module")
def predictor():
    return rl.Predictor()


@pytest.mark.parametrize("where", ["image_last", "weight_last"])
def test_a_channels_last_convolution_is_spared_the_transposes(predictor, where):
    images = 2 * 2 * 32 * 64 * 56 * 56  # bytes read and written
    flops = 2 * 64 * 64 * 9 * 32 * 56 * 56
    least, transposes = max(flops, 76 * (images + 2 * 64 * 64 * 9)), 2 * 76 * images
    default, channels_last = (predictor.predict(convolution(**{where: yes}), GPU) for yes in (False, True))
    share = least / (least + transposes)
    assert channels_last_share(convolution(**{where: True})) == pytest.approx(share)
    assert channels_last.time_s == pytest.approx(max(default.time_s * share, default.bound_s))
    assert channels_last.bound_s == default.bound_s
    assert channels_last.high_s == default.high_s


@pytest.mark.parametrize(
    "kind",
    [{"taps": 1}, {"taps": 1, "side": 1}, {"groups": 64}, {"channels": 3}, {"dtype": "float32"}],
    ids=lambda kind: str(list(kind)),
)
def test_what_takes_as_long_in_both_layouts(predictor, kind):
    default, channels_last = (convolution(**kind, image_last=yes, weight_last=yes) for yes in (False, True))
    assert predictor.predict(channels_last, GPU) == predictor.predict(default, GPU)


@pytest.mark.parametrize(("side", "stride"), [(14, 1), (56, 2)])
def test_a_product_whose_rows_of_pixels_are_not_aligned_is_transposed_for(side, stride):
    """14 * 14 pixels of 2 B are 392 B, which 16 does not divide; what a stride leaves out is transposed too."""
    x, y = 2 * 32 * 64 * side**2, 2 * 32 * 64 * (side // stride) ** 2
    moved, transposes = 2 * y + 2 * 64 * 64, 2 * (x + y)  # memory-bound: 32 FLOPs a byte, where 76 would take as long
    share = channels_last_share(convolution(taps=1, side=side, stride=stride, image_last=True))
    assert share == pytest.approx(moved / (moved + transposes))
    assert channels_last_share(convolution(taps=1, side=side, stride=stride)) == 1


@pytest.mark.parametrize("device", ["P100-SXM2-16GB", "MI210"])
def test_other_devices_have_no_layout(predictor, device):
    assert predictor.predict(convolution(image_last=True), device) == predictor.predict(convolution(), device)


def test_more_bandwidth_is_never_slower(predictor):
    for channels in (16, 64, 512):
        h100, h200 = (
            predictor.predict(convolution(channels, channels, image_last=True), device).time_s
            for device in ("H100-PCIE-80GB", "H100-NVL-94GB")
        )
        assert h200 <= h100 * (1 + 1e-6)


def test_a_network_without_hardware_is_faster_channels_last(predictor):
    predicted = {}
    for layout in (torch.contiguous_format, torch.channels_last):
        with torch.device("meta"):
            layers = [torch.nn.Conv2d(16, 16, 3, bias=False) for _ in range(2)]
            net = torch.nn.Sequential(*layers).half().to(memory_format=layout)
            x = torch.empty(32, 16, 128, 128, dtype=torch.float16).contiguous(memory_format=layout)
        with rl.record(net) as recording:
            net(x).sum().backward()
        analysis = rl.analyze(recording, GPU, predictor=predictor)
        for way in ("forward", "backward"):
            groups = {group.name: group.predicted for group in analysis.by("direction")}
            predicted[layout, way] = groups[way].time_s
    for way in ("forward", "backward"):
        assert predicted[torch.channels_last, way] < predicted[torch.contiguous_format, way]
