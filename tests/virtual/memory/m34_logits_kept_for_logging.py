"""The logits of the last iteration are kept for a log while the next ones are made."""
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(nn.Embedding(32_000, 512), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 32_000)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
log = {"logits": None, "loss": 0.0}

for step in range(5):
    tokens = torch.randint(0, 32_000, (16, 1025), device="cuda")
    logits = model(tokens[:, :-1]).flatten(0, 1)  # 16_384 * 32_000 * 4 = 2.097e9 bytes
    loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.update(logits=logits.detach(), loss=loss.item())
    del logits
    if step == 4:
        print(log["loss"], log["logits"].float().std().item())
