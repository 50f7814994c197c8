"""Cross entropy over a large vocabulary: the logits' gradient and log-softmax outweigh the model."""
import torch
import torch.nn.functional as F
from torch import nn

# Logits: 8 * 2048 * 128_256 = 2.1e9 elements, as bfloat16 4.2e9 bytes and as float32 8.4e9.
vocabulary, width = 128_256, 2048
embed = nn.Embedding(vocabulary, width, device="cuda", dtype=torch.bfloat16)
body = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)).to("cuda", torch.bfloat16)
head = nn.Linear(width, vocabulary, bias=False, device="cuda", dtype=torch.bfloat16)
optimizer = torch.optim.AdamW([*embed.parameters(), *body.parameters(), *head.parameters()], lr=1e-4)

for step in range(5):
    tokens = torch.randint(0, vocabulary, (8, 2049), device="cuda")
    logits = head(body(embed(tokens[:, :-1])))
    loss = F.cross_entropy(logits.float().view(-1, vocabulary), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
