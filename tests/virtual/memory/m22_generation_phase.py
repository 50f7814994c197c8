"""Reinforcement learning on text: the rollout's scores of the whole vocabulary outweigh the update."""
import torch
from torch import nn

# At `entropy`: the 64 scores, their two stacks, and the exponential: 4 * 3.2768e9 bytes.
vocabulary, width, prompts, length = 50_000, 1024, 256, 64
model = nn.Sequential(nn.Embedding(vocabulary, width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, vocabulary))
model = model.to(device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

for step in range(5):
    tokens = torch.zeros(prompts, 1, dtype=torch.long, device="cuda")
    scores = []
    with torch.no_grad():
        for _ in range(length):
            logits = model(tokens[:, -1]).float()
            scores.append(logits.log_softmax(dim=-1))  # 256 * 50_000 * 4 = 51.2e6 bytes, 64 times: 3.28e9
            tokens = torch.cat([tokens, logits.argmax(dim=-1, keepdim=True)], dim=1)
        entropy = -(torch.stack(scores) * torch.stack(scores).exp()).sum(dim=-1).mean()
    del scores
    picked = model(tokens[:32, :-1]).log_softmax(dim=-1).gather(2, tokens[:32, 1:, None])
    loss = -(picked * entropy).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
