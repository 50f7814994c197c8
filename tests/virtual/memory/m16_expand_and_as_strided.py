"""expand() and as_strided() look huge and cost nothing, until one of them is made contiguous."""
import torch
from torch import nn

# signal 2**26 * 4 = 256 MiB; windows (65_000 of 65_536) seem 17 GB, positions seem 16 GiB.
signal = torch.randn(2**26, device="cuda")
windows = signal.as_strided((65_000, 65_536), (1000, 1))
positions = torch.arange(65_536, device="cuda", dtype=torch.float32).expand(65_536, 65_536)
model = nn.Linear(65_536, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())

for step in range(5):
    rows = slice(step * 4096, (step + 1) * 4096)
    x = windows[rows].contiguous() + positions[rows]
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
