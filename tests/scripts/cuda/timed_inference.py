"""A benchmark of inference: half precision, max-autotune, warm-up, a CUDA graph, events, quantiles, memory, threads."""

import statistics
import time

import torch
from torch import nn

torch.set_float32_matmul_precision("high")
torch.backends.cuda.enable_flash_sdp(True)
props = torch.cuda.get_device_properties(torch.cuda.current_device())
print(
    f"{props.name}: {props.multi_processor_count} SMs, {props.total_memory / 2**30:.1f} GiB, torch {torch.__version__}"
)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norms[1](x))


model = nn.Sequential(*(Layer(768, 12) for _ in range(6))).cuda().half().eval()
compiled = torch.compile(model, mode="max-autotune", fullgraph=True)
x = torch.randn(8, 512, 768, device="cuda", dtype=torch.float16)


def timed(fn, iterations=20):
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(iterations):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        with torch.cuda.nvtx.range("forward"):
            fn()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    print(f"{statistics.median(times):.3f} ms, peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


with torch.inference_mode():
    for _ in range(3):
        compiled(x)
    timed(lambda: compiled(x))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(x)
    begin = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    print(f"graph {1e3 * (time.perf_counter() - begin):.3f} ms, finite {torch.isfinite(out).all().item()}")
