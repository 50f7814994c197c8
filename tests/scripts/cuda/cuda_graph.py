"""A whole training step captured in a CUDA graph after torch's notes: warm-up on a side stream, then replays."""

import torch
from torch import nn

N, D_in, H, D_out = 640, 4096, 2048, 1024
model = nn.Sequential(nn.Linear(D_in, H), nn.Dropout(p=0.2), nn.Linear(H, D_out), nn.Dropout(p=0.1)).cuda()
loss_fn = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
static_input, static_target = torch.randn(N, D_in, device="cuda"), torch.randn(N, D_out, device="cuda")

s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(static_input), static_target)
        loss.backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(s)

g = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(g):
    static_loss = loss_fn(model(static_input), static_target)
    static_loss.backward()
    optimizer.step()

start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
for data, target in zip(
    [torch.rand_like(static_input) for _ in range(10)], [torch.rand_like(static_target) for _ in range(10)]
):
    static_input.copy_(data)
    static_target.copy_(target)
    g.replay()
end.record()
torch.cuda.synchronize()
print(f"loss {static_loss.item():.4f}, {start.elapsed_time(end) / 10 > 0}")
