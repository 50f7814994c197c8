"""Several devices side by side: rates, prices and order by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import rooflight as rl
from rooflight.front.on_devices import devices_table, prices_of, ranked, ranking, row_of
from rooflight.records.timeline import OnDevice, VirtualRun

NAMES = ("A100-SXM4-80GB", "H100-SXM5-80GB")
ROW = OnDevice(
    device="A", gpus=1, step_s=0.5, step_low_s=0.4, step_high_s=0.7, compiled_s=None, compiled_low_s=None,
    compiled_high_s=None, bound_s=0.1, memory_bytes=10, eager_memory_bytes=10, fits=True, exchange_bytes=0,
    phase="step",
)  # fmt: skip


def step(parts: int = 1) -> rl.Session:
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
    with rl.record(memory=True) as recording:
        for data in torch.randn(32, 64).split(32 // parts):
            net(data).sum().backward()
    return recording.session


@pytest.mark.parametrize(("gpus", "parts"), [(1, 1), (8, 1), (1, 4)])
def test_rates_and_dollars_by_hand(gpus: int, parts: int) -> None:
    predictor = rl.Predictor()
    analysis = rl.analyze(step(parts), "H100-SXM5-80GB", predictor=predictor)
    virtual = VirtualRun(devices=NAMES, gpus=gpus, nodes=1, rank=0, compiled=0)
    row = row_of(analysis, virtual, predictor, 3.6)
    assert row.time_s is not None
    assert row.samples_per_s == pytest.approx(32 * gpus / row.time_s)
    assert row.tokens_per_s is None
    # 3.6 dollars an hour are 0.001 a second, of each of the GPUs
    assert row.dollars_per_million_samples == pytest.approx(0.001 * row.time_s / 32 * 1e6)
    assert row.mfu is not None
    assert row.mfu == pytest.approx(analysis.totals.matrix_flops / row.time_s / 66.9e12, rel=0.01)
    assert row.largest_batch is not None
    assert row.batch_factor is not None
    assert row.largest_batch == int(32 * row.batch_factor)


def test_devices_are_in_the_order_of_time_or_of_price_and_those_that_do_not_fit_come_last() -> None:
    slow, fast = replace(ROW, device="slow", step_s=2.0), replace(ROW, device="fast", step_s=1.0)
    small = replace(ROW, device="small", step_s=0.1, fits=False)
    assert [each.device for each in ranked([small, slow, fast])] == ["fast", "slow", "small"]
    assert ranking([small, slow, fast]) == "Fastest where it fits: fast, 1.00 s."
    priced = [
        replace(each, price_per_hour=1.0, dollars_per_million_tokens=price)
        for each, price in ((slow, 1.0), (fast, 3.0), (small, 0.5))
    ]
    assert [each.device for each in ranked(priced)] == ["slow", "fast", "small"]
    assert ranking(priced).endswith("cheapest: slow, $1 for a million tokens.")
    assert [each.device for each in ranked([priced[0], fast])] == ["fast", "slow"]  # of one no price is known
    assert ranking([small, slow]) == ""


def test_columns_of_which_nothing_is_known_are_left_out() -> None:
    assert [column.name for column in devices_table([ROW]).columns] == [
        "device", "eager", "90 %", "bound", "memory", "fits",
    ]  # fmt: skip


@pytest.mark.parametrize("word", ["H100-SXM5-80GB", "H100-SXM5-80GB=", "H100-SXM5-80GB=x", "H100-SXM5-80GB=0",
                                  "H100-SXM5-80GB=-1", "H100-SXM5-80GB=nan", "H100-SXM5-80GB=inf"])  # fmt: skip
def test_prices_that_are_none_are_refused(word: str) -> None:
    devices = [rl.devices.get(name) for name in NAMES]
    with pytest.raises(ValueError, match="say DEVICE=DOLLARS"):
        prices_of([word], devices)


def test_prices_are_of_the_devices_that_are_asked_about() -> None:
    devices = [rl.devices.get(name) for name in NAMES]
    assert prices_of(["h100 sxm5 80gb=2.5"], devices) == {"H100-SXM5-80GB": 2.5}
    with pytest.raises(ValueError, match="T4 is none of A100-SXM4-80GB, H100-SXM5-80GB"):
        prices_of(["T4=1"], devices)
    with pytest.raises(ValueError, match="unknown device"):
        prices_of(["nothing=1"], devices)
