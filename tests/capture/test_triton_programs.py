"""What Triton kernels do, counted by their own code: by hand arithmetic."""

from __future__ import annotations

import pytest

from rooflight.sources.capture.triton_programs import DTYPES, LANGUAGE, Block, Descriptor, UnknownError, work_of

tl = LANGUAGE
HALF = DTYPES["bfloat16"]


def pointers(*names):
    return {name: Block((), HALF, number) for number, name in enumerate(names)}


def matmul(a, b, c, size, block, lower):
    row, column = tl.program_id(0), tl.program_id(1)
    if lower and column > row:  # known of symmetric results
        return
    m, n, k = row * block + tl.arange(0, block), column * block + tl.arange(0, block), tl.arange(0, block)
    total = tl.zeros((block, block), dtype=tl.float32)
    for start in range(0, size, block):
        left = tl.load(a + m[:, None] * size + (k + start)[None, :])
        right = tl.load(b + (k + start)[:, None] * size + n[None, :])
        total = tl.dot(left, tl.trans(right).T, total)
    assert total.shape == (block, block)
    tl.store(c + m[:, None] * size + n[None, :], total.to(tl.bfloat16))


def test_a_product_has_its_flops_and_moves_each_matrix_once():
    size = 256
    given = {**pointers("a", "b", "c"), "size": size, "block": 64, "lower": False}
    work = work_of(matmul, given, (4, 4), [2 * size**2] * 3)
    assert work.flops == 2 * size**3
    assert work.read == ((0, 2 * size**2), (1, 2 * size**2))  # each is loaded four times, and read once
    assert work.written == ((2, 2 * size**2),)


def test_programs_that_end_at_once_do_nothing():
    given = {**pointers("a", "b", "c"), "size": 256, "block": 64, "lower": True}
    work = work_of(matmul, given, (4, 4), [2 * 256**2] * 3)
    assert work.flops == 2 * 256**3 * 10 // 16  # of 16 blocks of the result ten are not above the diagonal
    assert work.written == ((2, 2 * 256**2 * 10 // 16),)


def test_of_many_programs_some_run():
    ran = []

    def kernel(x, y):
        ran.append(tl.program_id(0))
        place = tl.program_id(0) * 1024 + tl.arange(0, 1024)
        tl.store(y + place, tl.sum(tl.exp(tl.load(x + place, mask=place < 7)), axis=0)[None])

    work = work_of(kernel, pointers("x", "y"), (1_000_000,), [1 << 60] * 2)
    assert len(set(ran)) == 32
    assert work.read == ((0, 2 * 1024 * 1_000_000),)


def test_blocks_of_descriptors():
    def kernel(x, y):
        value = x.load([0, 0])
        y.store([0, 0], tl.maximum(value, 0) * value)

    given = {name: Descriptor(block, (64, 64), (64, 1), (16, 8)) for name, block in pointers("x", "y").items()}
    work = work_of(kernel, given, (4,), [1 << 20] * 2)
    assert work.read == ((0, 4 * 2 * 16 * 8),)
    assert work.written == ((1, 4 * 2 * 16 * 8),)


@pytest.mark.parametrize("ask", [bool, int, range])
def test_what_depends_on_values_is_not_known(ask):
    with pytest.raises(UnknownError):
        work_of(lambda x: ask(tl.load(x)), pointers("x"), (1,), [8])


def test_shapes_follow():
    both = Block((4, 1)) + Block((1, 8), DTYPES["float32"])
    assert both.shape == (4, 8)
    assert both.dtype is DTYPES["float32"]
    assert tl.max(both, 1).shape == (4,)
    assert tl.max(both, axis=-1, keep_dims=True).shape == (4, 1)
    assert tl.permute(both, (1, 0)).shape == both.T.shape == (8, 4)
    first, second = tl.split(tl.reshape(both, (4, 4, 2)))
    assert first.shape == second.shape == (4, 4)
    assert tl.join(first, second).shape == (4, 4, 2)
    assert (both > 2)[None].shape == (1, 4, 8)
    assert tl.swizzle2d(2, 3, 4, 4, 2) == (3, 1)  # the twelfth of 16, in groups of two rows
