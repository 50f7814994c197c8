"""Kernels that torch does not have: chains of multiply-adds, and reads that stay in L2. NVRTC compiles them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

Run = Callable[[], object]

_BLOCK: Final = 256
_CHAINS: Final = 16  # independent chains: a multiply-add waits 4 cycles for its own chain, never for another
_STEPS: Final = 4
_ROUNDS: Final = 512
_BLOCKS_PER_UNIT: Final = 64  # eight waves or more, so that a half empty last one costs little

_MULTIPLY_ADD: Final = """
extern "C" __global__ void multiply_add(REAL* data, int rounds) {
    const REAL scale = data[0], shift = data[1];
    REAL chain[CHAINS];
    #pragma unroll
    for (int i = 0; i < CHAINS; ++i) chain[i] = shift * (REAL)(threadIdx.x + i);
    for (int round = 0; round < rounds; ++round) {
        #pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            #pragma unroll
            for (int i = 0; i < CHAINS; ++i) chain[i] = chain[i] * scale + shift;
        }
    }
    REAL sum = 0;
    #pragma unroll
    for (int i = 0; i < CHAINS; ++i) sum += chain[i];
    data[2 + blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""

# __ldcg bypasses L1; the write never happens, but because of it the compiler does not drop the reads
_READ: Final = """
extern "C" __global__ void __launch_bounds__(256, 8)
read_again(const float4* data, float* out, int count, int repeats) {
    float sum = 0;
    const int stride = gridDim.x * blockDim.x;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        #pragma unroll 4
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
            const float4 four = __ldcg(data + i);
            sum += four.x + four.y + four.z + four.w;
        }
    }
    if (sum == -1.0f) out[0] = sum;
}
"""

_JITERATOR: Final = """
template <typename T> T multiply_add(T x, T scale, T shift) {
    T a = x, b = x + shift, c = b + shift, d = c + shift, e = d + shift, f = e + shift, g = f + shift, h = g + shift;
    for (int i = 0; i < STEPS; ++i) {
        a = a * scale + shift; b = b * scale + shift; c = c * scale + shift; d = d * scale + shift;
        e = e * scale + shift; f = f * scale + shift; g = g * scale + shift; h = h * scale + shift;
    }
    return a + b + c + d + e + f + g + h;
}
"""


def multiply_add(real: str, unit_count: int) -> tuple[float, Callable[[], Run]]:
    """FLOPs per call, and the function that prepares it: many threads per multiprocessor, each with 16 chains of
    ``real``.
    """
    blocks = unit_count * _BLOCKS_PER_UNIT
    flops = 2.0 * _CHAINS * _STEPS * _ROUNDS * blocks * _BLOCK

    def prepare() -> Run:
        import torch

        source = _MULTIPLY_ADD.replace("CHAINS", str(_CHAINS)).replace("STEPS", str(_STEPS)).replace("REAL", real)
        kernel = _compiled(source, "multiply_add")
        dtype = {"float": torch.float32, "double": torch.float64}[real]
        data = torch.zeros(2 + blocks * _BLOCK, dtype=dtype, device="cuda")
        data[0], data[1] = 0.999, 0.001  # chains tend to 1: neither overflow nor denormals
        return lambda: kernel(grid=(blocks, 1, 1), block=(_BLOCK, 1, 1), args=[data, _ROUNDS])

    return flops, prepare


def multiply_add_by_jiterator(dtype: str) -> tuple[float, Callable[[], Run]]:
    """The same, compiled by torch's own just-in-time compiler, for machines without the headers that ``multiply_add``
    needs.
    """
    count, steps = 1 << 21, 512
    flops = 2.0 * 8 * steps * count

    def prepare() -> Run:
        import torch

        source = _JITERATOR.replace("STEPS", str(steps))
        chain: Any = torch.cuda.jiterator._create_jit_fn(source, scale=0.999, shift=0.001)
        numbers = torch.rand(count, dtype=getattr(torch, dtype), device="cuda")
        return lambda: chain(numbers)

    return flops, prepare


def read_again(set_bytes: int, unit_count: int, repeats: int = 64) -> tuple[float, Callable[[], Run]]:
    """Bytes per call, and what prepares it: ``repeats`` passes over ``set_bytes`` by all multiprocessors."""
    count = set_bytes // 16

    def prepare() -> Run:
        import torch

        kernel = _compiled(_READ, "read_again")
        data = torch.rand(count * 4, device="cuda")
        out = torch.zeros(1, device="cuda")
        grid = (unit_count * (2048 // _BLOCK), 1, 1)
        return lambda: kernel(grid=grid, block=(_BLOCK, 1, 1), args=[data, out, count, repeats])

    return 16.0 * count * repeats, prepare


@functools.cache
def _compiled(source: str, name: str) -> Any:
    import torch

    compile_kernel: Any = getattr(torch.cuda, "_compile_kernel", None)  # since torch 2.9
    if compile_kernel is None:
        raise RuntimeError("this torch cannot compile CUDA kernels: 2.9 or later can")
    return compile_kernel(source, name)
