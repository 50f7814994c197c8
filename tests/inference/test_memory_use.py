"""Memory over runs: bytes of KV caches by hand, memory at the ends of runs by injected counters, without waiting."""

from __future__ import annotations

import gc
import time
from mmap import mmap

import pytest
import torch
import transformers
from fake_device import FakeDevice
from hypothesis import given
from hypothesis import strategies as st
from measured_runs import run_of
from small_decoders import LLAMA
from test_attach_model import FAMILIES, build

from rooflight.hardware.machine.memory import Memory, host_memory
from rooflight.studies.inference.facts import cache_bytes
from rooflight.studies.inference.runs import KvCacheUse

CONFIG = transformers.LlamaConfig(**LLAMA)


def filled(cache, *, batch: int = 3, length: int = 5):
    for layer in range(2):
        cache.update(torch.zeros(batch, 2, length, 8), torch.zeros(batch, 2, length, 8), layer)
    return cache


def test_the_bytes_of_caches_by_hand():
    # 2 layers, keys and values, 3 sequences, 2 heads of 8 float32: 768 B a token
    assert cache_bytes(filled(transformers.DynamicCache(config=CONFIG))) == 768 * 5
    assert cache_bytes(filled(transformers.StaticCache(config=CONFIG, max_cache_len=9))) == pytest.approx(
        768 * 9, abs=64
    )
    both = transformers.EncoderDecoderCache(
        filled(transformers.DynamicCache(config=CONFIG)), filled(transformers.DynamicCache(config=CONFIG), length=7)
    )
    assert cache_bytes(both) == 768 * 12
    keys = torch.zeros(2, 3)
    assert cache_bytes([(keys, keys[:1]), {"values": keys.clone()}]) == 48  # one storage, and another
    assert cache_bytes(12) == 12
    assert cache_bytes(torch.empty(1 << 40, dtype=torch.int8, device="meta")) == 1 << 40


@pytest.mark.parametrize(
    "nothing",
    [None, "cache", [], {}, object(), torch, torch.nn.Linear(2, 2), True, 1.5, -1, [[[[[[[[torch.ones(2)]]]]]]]]],
)
def test_what_is_no_cache_is_refused(nothing):
    with pytest.raises(ValueError, match=r"KV cache|no tensor"):
        cache_bytes(nothing)


def test_an_object_that_holds_itself_ends():
    class Loop:
        def __init__(self) -> None:
            self.me, self.kept = self, torch.zeros(4)

    assert cache_bytes(Loop()) == 16


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "gpt_bigcode", "falcon", "bloom", "qwen3_moe"])
def test_each_step_tells_its_cache(host, prof, family):
    assert family in FAMILIES
    model = build(family)
    ids = torch.ones((2, 3), dtype=torch.int64)
    with torch.inference_mode():
        cache = model(input_ids=ids, use_cache=True).past_key_values
        expected = []
        with run_of(prof, bsz=2):
            for _ in range(3):
                with prof.step_timing_ctx():
                    prof.set_step_tokens(2)
                    prof.set_step_kv_cache(cache)
                    parts = [part for layer in cache.layers for part in vars(layer).values()]  # sliding ones count, too
                    expected.append(sum(part.nbytes for part in parts if isinstance(part, torch.Tensor)))
                    model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)
    assert expected == sorted(expected)
    assert expected[0] < expected[-1]
    summary = host.summary()
    assert summary["kv_cache"] == {
        "steps": 3, "mean_bytes": sum(expected) / 3, "max_bytes": expected[-1], "last_bytes": expected[-1]
    }  # fmt: skip
    assert summary["runs"][0]["kv_cache"] == summary["kv_cache"]
    rows = [line.split(",") for line in (prof.out_dir / "steps.csv").read_text().splitlines()]
    assert [int(row[rows[0].index("kv_cache_bytes")]) for row in rows[1:]] == expected
    assert "KV cache" in host.report()


def test_bytes_are_those_of_their_own_step(host, prof):
    with run_of(prof, bsz=1):
        for told in (10, None, 30, "broken"):
            with prof.step_timing_ctx():
                prof.set_step_tokens(1)
                if told is not None:
                    prof.set_step_kv_cache(told)
        prof.set_step_kv_cache(5)  # outside of steps
    with run_of(prof, bsz=1), prof.step_timing_ctx():
        prof.set_step_tokens(1)
    summary = host.summary()
    assert summary["kv_cache"] == {"steps": 2, "mean_bytes": 20.0, "max_bytes": 30, "last_bytes": 30}
    assert summary["runs"][1]["kv_cache"] is None
    assert any(text.startswith("set_step_kv_cache: no tensor in a str") for text in summary["problems"])
    assert any("set_step_kv_cache() outside" in text for text in summary["problems"])


def test_memory_of_a_device_is_read_without_waiting(make):
    device = FakeDevice()
    bench = make(device, strict_sync=False)
    prof = bench.profiler
    for before, after in (((100, 500), (150, 500)), ((150, 500), (170, 800))):
        device.memory_now = Memory(*before)
        with run_of(prof, bsz=1):
            syncs = device.syncs
            with prof.step_timing_ctx():
                prof.set_step_tokens(1)
                bench.work(1000)
            device.memory_now = Memory(*after)
            assert device.syncs == syncs
            bench.catch_up()
    summary = bench.summary()
    first, second = (run["memory"] for run in summary["runs"])
    assert first == {
        "place": "device", "before_bytes": 100, "after_bytes": 150, "peak_bytes": 500, "peak_in_run": False
    }  # fmt: skip
    assert second["peak_in_run"]
    assert summary["memory"] == {
        "place": "device", "before_bytes": 100, "after_bytes": 170, "peak_bytes": 800, "peak_in_run": True
    }  # fmt: skip
    assert "170 B when they ended; peak of the process 800 B, reached in a run" in bench.report()


def test_memory_of_the_host_grows_with_what_is_held(make):
    gc.collect()
    bench = make()
    prof = bench.profiler
    size = 64 << 20
    before = host_memory().held_bytes
    prof.begin_run(bsz=1)
    with mmap(-1, size) as held:  # pages of its own: a tensor may get memory that was freed, and still counts
        for page in range(0, size, 4096):
            held[page] = 1
        deadline = time.monotonic() + 10  # the kernel may count late
        while host_memory().held_bytes - before < 0.95 * size and time.monotonic() < deadline:
            time.sleep(0.02)
        prof.end_run()
    (run,) = bench.summary()["runs"]
    memory = run["memory"]
    assert memory["place"] == "host"
    assert memory["after_bytes"] - memory["before_bytes"] >= 0.9 * size
    assert memory["peak_bytes"] >= memory["after_bytes"]


def test_without_counters_memory_is_unknown(make, monkeypatch):
    monkeypatch.setattr("rooflight.studies.inference.clocks.host_memory", lambda: None)
    host = make()
    with run_of(host.profiler, bsz=1):
        pass
    summary = host.summary()
    assert summary["memory"] is None
    assert summary["runs"][0]["memory"] is None
    assert "resident" not in host.report()


@given(st.lists(st.lists(st.integers(0, 1 << 50), max_size=5), max_size=4))
def test_runs_add_up_to_the_whole(runs):
    whole, parts = KvCacheUse(), KvCacheUse()
    for run in runs:
        part = KvCacheUse()
        for value in run:
            for use in (whole, part):
                use.add(value)
        parts.merge(part)
    assert parts == whole
    assert (whole.data() is None) == (not any(runs))
