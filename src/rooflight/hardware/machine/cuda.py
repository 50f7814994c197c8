"""Probes of a CUDA device: matrix and vector peaks, bandwidth of L2 and of main memory, cost of one more kernel."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rooflight.hardware.machine.probes import Probe, Trial, streams
from rooflight.hardware.machine.timing import CudaEvents, SteadyClock, cold_cache

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


def multiply_add(real: str, unit_count: int) -> Trial:
    """Many threads per multiprocessor, each with 16 chains of ``real``."""
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

    return Trial(pattern="multiply-add kernel", work=flops, prepare=prepare)


def multiply_add_by_jiterator(dtype: str) -> Trial:
    """By torch's own just-in-time compiler, for machines without the headers that ``multiply_add`` needs."""
    count, steps = 1 << 21, 512

    def prepare() -> Run:
        import torch

        source = _JITERATOR.replace("STEPS", str(steps))
        chain: Any = torch.cuda.jiterator._create_jit_fn(source, scale=0.999, shift=0.001)
        numbers = torch.rand(count, dtype=getattr(torch, dtype), device="cuda")
        return lambda: chain(numbers)

    return Trial(pattern="multiply-add by jiterator", work=2.0 * 8 * steps * count, prepare=prepare)


def read_again(set_bytes: int, unit_count: int) -> Trial:
    """Passes over ``set_bytes`` by all multiprocessors."""
    count, repeats = set_bytes // 16, 64

    def prepare() -> Run:
        import torch

        kernel = _compiled(_READ, "read_again")
        data = torch.rand(count * 4, device="cuda")
        out = torch.zeros(1, device="cuda")
        grid = (unit_count * (2048 // _BLOCK), 1, 1)
        return lambda: kernel(grid=grid, block=(_BLOCK, 1, 1), args=[data, out, count, repeats])

    pattern = f"read kernel on {set_bytes >> 10} KiB"
    return Trial(pattern=pattern, work=16.0 * count * repeats, prepare=prepare)


@functools.cache
def _compiled(source: str, name: str) -> Any:
    import torch

    compile_kernel: Any = getattr(torch.cuda, "_compile_kernel", None)  # since torch 2.9
    if compile_kernel is None:
        raise RuntimeError("this torch cannot compile CUDA kernels: 2.9 or later can")
    return compile_kernel(source, name)


Run = Callable[[], object]

MATRIX_PRECISIONS = ("float32", "tfloat32", "float16", "bfloat16", "float64", "int8", "float8")
_FLOAT_BYTES = 4


def probes(*, quick: bool = False) -> tuple[Probe, ...]:
    """Every probe for the current CUDA device. One that the device or this torch cannot run fails alone, with its
    reason.
    """
    import torch

    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    units = int(properties.multi_processor_count)
    l2_bytes = int(getattr(properties, "L2_cache_size", 0))
    return (
        *(
            Probe(name=f"matrix {precision}", unit="FLOP", trials=_products(precision, units, quick))
            for precision in MATRIX_PRECISIONS
        ),
        Probe(name="vector float32", unit="FLOP", trials=_multiply_adds("float", "float32", units)),
        Probe(name="vector float64", unit="FLOP", trials=_multiply_adds("double", "float64", units)),
        Probe(name="memory L2", unit="B", trials=_l2_trials(l2_bytes, units) if l2_bytes else ()),
        Probe(name="memory HBM", unit="B", trials=_hbm_trials(int(properties.total_memory), l2_bytes, quick)),
        Probe(name="launch in a stream", unit="op", trials=(_stream_launches(),)),
        Probe(name="launch in a graph", unit="op", trials=(_graph_launches(),)),
    )


def warm_up(seconds: float = 0.5) -> None:
    """Keep the matrix units busy until the clocks have risen from idle."""
    import torch

    side = torch.randn(2048, 2048, device="cuda")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(20):
            torch.mm(side, side)
        torch.cuda.synchronize()


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Run the block with float32 products at this precision ("highest": no TF32; "high": TF32); restore it after."""
    import torch

    before = torch.get_float32_matmul_precision()
    if before != name:
        torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        if before != name:
            torch.set_float32_matmul_precision(before)


def _products(precision: str, units: int, quick: bool) -> tuple[Trial, ...]:
    """Squares, and shapes whose 128 x 256 tiles fill every multiprocessor an equal number of times."""
    shapes = [(2048, 2048, 2048), (4096, 4096, 4096)]
    if not quick:
        shapes += [(64 * units, 8192, 2048), (8192, 8192, 4096), (64 * units, 8192, 8192), (8192, 8192, 8192)]
    return tuple(_product(precision, *shape) for shape in shapes)


def _product(precision: str, m: int, n: int, k: int) -> Trial:
    def prepare() -> Run:
        import torch

        left, right = _random(precision, m, k), _random(precision, n, k).t()
        if precision == "int8":
            return lambda: torch._int_mm(left, right)
        if precision == "float8":
            one = torch.ones((), device="cuda")
            return lambda: torch._scaled_mm(
                left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        out = torch.empty(m, n, dtype=left.dtype, device="cuda")
        if precision != "tfloat32":
            return lambda: torch.mm(left, right, out=out)

        def run() -> None:
            with matmul_precision("high"):
                torch.mm(left, right, out=out)

        return run

    name = {"int8": "_int_mm", "float8": "_scaled_mm"}.get(precision, "mm")
    return Trial(pattern=f"{name} {m}x{n}x{k}", work=2 * m * n * k, prepare=prepare)


def _multiply_adds(real: str, dtype: str, units: int) -> tuple[Trial, ...]:
    return multiply_add(real, units), multiply_add_by_jiterator(dtype)


def _l2_trials(l2_bytes: int, units: int) -> tuple[Trial, ...]:
    """Working sets of a quarter and a half of L2, passed over many times by one kernel or one graph."""
    trials: list[Trial] = []
    for set_bytes in (l2_bytes // 4, l2_bytes // 2):
        trials.append(read_again(set_bytes, units))
        trials += _streams(set_bytes, repeats=50, label=f"{set_bytes >> 10} KiB")
    return tuple(trials)


def _hbm_trials(memory_bytes: int, l2_bytes: int, quick: bool) -> tuple[Trial, ...]:
    """Arrays far larger than L2, which is filled with something else before every sample."""
    total_bytes = min(memory_bytes // 8, (1024 if quick else 4096) << 20)
    cold = functools.cache(cold_cache)

    def flush() -> object:
        return cold(l2_bytes)()  # made at first use: probes are listed before anything is allocated

    clock = CudaEvents(flush=flush)
    return tuple(_streams(total_bytes, repeats=1, label=f"{total_bytes >> 20} MiB", clock=clock))


def _streams(set_bytes: int, *, repeats: int, label: str, clock: CudaEvents | None = None) -> list[Trial]:
    import torch

    def trial(name: str, arrays: int, touches: int, make: Callable[[Any, Any, Any], Run]) -> Trial:
        count = set_bytes // arrays // _FLOAT_BYTES

        def prepare() -> Run:
            numbers = [torch.rand(count, device="cuda") for _ in range(arrays)]
            run = make(*(3 * numbers)[:3])
            return run if repeats == 1 else graph_of(run, repeats)

        work = touches * count * _FLOAT_BYTES * repeats
        return Trial(pattern=f"{name} on {label}", work=work, prepare=prepare, clock=clock)

    return [trial(*stream) for stream in streams()]


def graph_of(run: Run, repeats: int) -> Run:
    """A call that replays ``repeats`` runs as one CUDA graph: no launch from the host in between."""
    import torch

    stream: Any = torch.cuda.Stream
    side = stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries allocate their workspaces before the capture
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    return graph.replay


def _stream_launches() -> Trial:
    """The cost of a launch in eager code: host time per tiny kernel, of many, the wait for the last one included."""
    calls = 1000

    def prepare() -> Run:
        import torch

        number = torch.rand(1, device="cuda")

        def run() -> None:
            for _ in range(calls):
                number.neg_()
            torch.cuda.synchronize()

        return run

    return Trial(pattern="neg_ on 1 element", work=calls, prepare=prepare, clock=SteadyClock())


def _graph_launches() -> Trial:
    """The least that one more dependent kernel costs the device."""
    calls = 1000

    def prepare() -> Run:
        import torch

        return graph_of(torch.rand(1, device="cuda").neg_, calls)

    return Trial(pattern="neg_ on 1 element", work=calls, prepare=prepare)


def _random(precision: str, rows: int, columns: int) -> Any:
    import torch

    if precision == "int8":
        return torch.randint(-127, 128, (rows, columns), dtype=torch.int8, device="cuda")
    numbers = torch.randn(rows, columns, device="cuda")
    if precision == "float8":
        return numbers.to(torch.float8_e4m3fn)
    return numbers.to(getattr(torch, {"tfloat32": "float32"}.get(precision, precision)))
