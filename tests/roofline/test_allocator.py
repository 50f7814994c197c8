"""The caching allocator: by hand, and by properties over random programs."""

from hypothesis import given
from hypothesis import strategies as st

from rooflight.roofline.memory.allocator import Allocator

MB = 1 << 20


def test_small_requests_share_a_segment_of_two_megabytes():
    allocator = Allocator()
    blocks = [allocator.allocate(1) for _ in range(3)]
    assert (allocator.allocated, allocator.reserved) == (3 * 512, 2 * MB)
    for block in blocks:
        allocator.release(block)
    assert (allocator.allocated, allocator.reserved, allocator.peak) == (0, 2 * MB, 3 * 512)
    assert allocator.allocate(MB).size == MB
    assert allocator.reserved == 2 * MB


def test_medium_requests_come_from_segments_of_twenty():
    allocator = Allocator()
    allocator.allocate(4 * MB)
    allocator.allocate(9 * MB)
    assert (allocator.allocated, allocator.reserved) == (13 * MB, 20 * MB)
    allocator.allocate(8 * MB)
    assert allocator.reserved == 40 * MB


def test_large_ones_have_their_own_in_whole_two_megabytes():
    allocator = Allocator()
    block = allocator.allocate(11 * MB + 1)
    assert (block.size, allocator.reserved) == (12 * MB, 12 * MB)  # less than 1 MiB remains: not split


def test_a_hole_that_is_too_small_is_fragmentation():
    allocator = Allocator()
    held = [allocator.allocate(12 * MB) for _ in range(4)]
    for block in held[::2]:
        allocator.release(block)
    allocator.allocate(24 * MB)
    assert (allocator.allocated, allocator.reserved) == (48 * MB, 72 * MB)


def test_neighbours_merge():
    allocator = Allocator()
    first, second, third = (allocator.allocate(5 * MB) for _ in range(3))
    allocator.release(first)
    allocator.release(third)
    allocator.release(second)
    assert allocator.allocate(9 * MB) is not None
    assert allocator.reserved == 20 * MB


def test_emptying_gives_back_whole_segments_alone_and_leaves_the_peak():
    allocator = Allocator()
    kept, gone = allocator.allocate(12 * MB), allocator.allocate(40 * MB)
    allocator.release(gone)
    allocator.empty()
    assert (allocator.allocated, allocator.reserved) == (12 * MB, 12 * MB)
    assert (allocator.peak, allocator.peak_reserved) == (52 * MB, 52 * MB)
    allocator.release(kept)
    allocator.empty()
    assert allocator.reserved == 0


def test_blocks_over_the_limit_are_not_split():
    allocator = Allocator(max_split=64 * MB)
    allocator.release(allocator.allocate(100 * MB))
    allocator.allocate(12 * MB)  # not from the large one
    assert allocator.reserved == 112 * MB
    assert allocator.allocate(90 * MB).size == 100 * MB
    assert allocator.reserved == 112 * MB


def test_segments_that_expand_leave_no_holes_behind():
    sizes = [30 * MB, 50 * MB, 70 * MB]
    kept = {True: 0, False: 0}
    for expandable in kept:
        allocator = Allocator(expandable=expandable)
        for size in sizes:
            allocator.release(allocator.allocate(size))
        kept[expandable] = allocator.reserved
    assert kept[False] == sum(sizes)
    assert kept[True] == 80 * MB  # whole pages of 20 MiB


@given(
    st.lists(st.tuples(st.integers(1, 64 * MB), st.integers(0, 5)), max_size=60), st.booleans(),
    st.sampled_from([1 << 62, 32 * MB]),
)  # fmt: skip
def test_counts_hold_whatever_is_asked(requests, expandable, max_split):
    allocator, alive = Allocator(expandable=expandable, max_split=max_split), []
    for size, drop in requests:
        alive.append(allocator.allocate(size))
        if drop < len(alive):
            allocator.release(alive.pop(drop))
        assert allocator.allocated == sum(block.size for block in alive)
        free = [block for blocks in allocator._free.values() for *_, block in blocks]
        assert allocator.reserved == allocator.allocated + sum(block.size for block in free)
        assert not any(each.free and each.after is not None and each.after.free for each in free)
    for block in alive:
        allocator.release(block)
    allocator.empty()
    assert allocator.allocated == allocator.reserved == 0
