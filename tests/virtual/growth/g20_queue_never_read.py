"""Results put on a queue that nothing reads."""
import queue

import torch
from torch import nn

results = queue.Queue()
model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda().eval()

for step in range(6):
    x = torch.randn(4096, 1024, device="cuda")
    with torch.inference_mode():
        answer = model(x)
    results.put((step, answer))  # grows: results
