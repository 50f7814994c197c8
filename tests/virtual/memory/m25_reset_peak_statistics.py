"""The script empties the cache and resets the peak after set-up; the peak of the whole run is before that."""
import torch
from torch import nn

# A lookup of all pairs: 60_000 * 60_000 * 4 = 14.4e9 bytes, the negative of it as much, 28.8e9 in all.
points = torch.randn(60_000, 64, device="cuda")
similarity = points @ points.t()
nearest = (-similarity).topk(8, dim=1).indices
del similarity
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()

model = nn.Sequential(nn.Linear(64 * 9, 1024), nn.ReLU(), nn.Linear(1024, 64)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    pick = torch.randint(0, 60_000, (8192,), device="cuda")
    near = points[nearest[pick]].flatten(1)
    loss = (model(torch.cat([points[pick], near], dim=1)) - points[pick]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.cuda.empty_cache()
print(f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
