"""The CPU's patterns do the work that they are credited with: a wrong count would be a wrong roof."""

import pytest

from rooflight.hardware.machine import cpu
from rooflight.hardware.machine.hardware import Cache

torch = pytest.importorskip("torch")


def test_windows_have_a_place_of_their_own_for_every_thread_and_overlap_within():
    window = cpu._window(threads=3, count=64, repeats=4)
    assert window.shape == (3, 4, 4, 4, 64)
    span = window.stride(0)
    # the last repeat of a thread ends before the next thread's first begins
    assert span >= 3 * 3 * 16 + 64
    assert window.untyped_storage().nbytes() >= 3 * span * 4


def test_a_window_can_be_written_and_holds_what_was_written():
    window = cpu._window(threads=2, count=32, repeats=3)
    window.fill_(2.5)
    assert torch.equal(window, torch.full_like(window, 2.5))


@pytest.mark.parametrize("pattern", range(6))
def test_streams_move_the_bytes_they_claim(pattern):
    trial = cpu._streams(8 * 1024, threads=2)[pattern]
    run = trial.prepare()
    moved = []

    class Bytes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            tensors = [value for value in (*args, (kwargs or {}).get("out")) if isinstance(value, torch.Tensor)]
            reads = {"sum": 1, "mul_": 1, "copy_": 1, "add_": 2, "add": 2, "fill_": 0}[name]
            writes = 0 if name == "sum" else 1  # sums are one number a row
            moved.append((reads + writes) * tensors[0].numel() * tensors[0].element_size())
            return out

    with Bytes():
        run()
    assert moved == [trial.work]


def test_convolutions_have_no_padding_to_be_credited_for():
    trial = cpu._convolution("float32", images=1, channels=8, side=6, kernel=3)
    out = trial.prepare()()
    # [1, 8, 4, 4] outputs, each 8 * 3 * 3 multiply-adds: 2 * 128 * 72 = 18432
    assert out.shape == (1, 8, 4, 4)
    assert trial.work == 18432


def test_products_do_the_work_they_claim():
    from torch.utils.flop_counter import FlopCounterMode

    for trial in (
        *cpu._products("float32", 2, quick=True),
        cpu._bmm("float32", 2, 16),
        cpu._square("float32", "addmm", 32),
    ):
        run = trial.prepare()
        with FlopCounterMode(display=False) as counter:
            run()
        assert counter.get_total_flops() == trial.work, trial.pattern


def test_random_data_is_random():
    numbers = cpu._random("bfloat16", 100, 1000)
    assert numbers.shape == (100, 1000)
    assert numbers.unique().numel() > 1000


def test_working_sets_lie_between_the_levels():
    caches = (
        Cache(name="L1", instance_bytes=32 << 10, instance_count=2),
        Cache(name="L2", instance_bytes=1 << 20, instance_count=2),
        Cache(name="L3", instance_bytes=8 << 20, instance_count=1),
    )
    # L3 share 4 MiB a thread: half is 2 MiB = 2 x L2, a quarter would sit in L2
    assert {trial.pattern.split(" on ")[1] for trial in cpu._cache_trials(caches, 2, 2)} == {"2048 KiB per thread"}
    sizes = {trial.pattern.split(" on ")[1] for trial in cpu._cache_trials(caches, 1, 2)}
    assert sizes == {"256 KiB per thread", "512 KiB per thread"}


def test_a_level_that_its_neighbour_hides_gets_the_neighbours_speed_and_not_none():
    caches = (
        Cache(name="L2", instance_bytes=2 << 20, instance_count=2),
        Cache(name="L3", instance_bytes=3 << 20, instance_count=1),
    )
    assert {trial.pattern.split(" on ")[1] for trial in cpu._cache_trials(caches, 1, 2)} == {"768 KiB per thread"}


def test_main_memory_is_measured_far_beyond_the_last_cache():
    assert cpu._dram_bytes(32 << 20, quick=False) >= 256 << 20
    assert cpu._dram_bytes(1 << 20, quick=True) == 4 << 20


def test_large_arrays_are_filled_to_the_end():
    array = cpu._large_random(100_000)
    assert array.numel() == 100_000
    assert bool((array >= 0).all())
    assert bool((array < 1).all())
    assert array[-1] == 0.5
