"""The evaluation after each second step uses a far larger batch than training does."""
import torch
import torch.nn.functional as F
from torch import nn

# Evaluation: x of 262_144 * 2048 * 4 = 2 GiB, and hidden layers of 262_144 * 4096 * 4 = 4 GiB,
# two of them at a time (a layer's input and its output): 10 GiB, and the weights and their state (0.4 GB).
model = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 100)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
held_out = torch.randn(262_144, 2048, device="cuda")
held_out_labels = torch.randint(0, 100, (262_144,), device="cuda")

for step in range(5):
    model.train()
    x = torch.randn(2048, 2048, device="cuda")
    y = torch.randint(0, 100, (2048,), device="cuda")
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 1:
        model.eval()
        with torch.no_grad():
            logits = model(held_out)
            accuracy = (logits.argmax(dim=1) == held_out_labels).float().mean().item()
        print(f"step {step}: {accuracy:.3f}")
