"""A cache that is an attribute of the class, keyed by the identity of the input."""
import torch
from torch import nn


class Encoder(nn.Module):
    seen = {}

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(1024, 2048)

    def forward(self, x, key):
        Encoder.seen[key] = self.project(x)  # grows: seen
        return Encoder.seen[key]


model = Encoder().cuda().eval()
with torch.inference_mode():
    for step in range(6):
        x = torch.randn(1024, 1024, device="cuda")
        score = model(x, f"request-{step}").mean()
