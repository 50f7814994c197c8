"""Fine-tunes a small encoder with a learning rate that falls from layer to layer."""

import torch
from torch import nn

TRUTH = {"regime": ("overhead", "latency"), "remedy": ("fused-optimizer",)}


class Classifier(nn.Module):
    def __init__(self, width=48, depth=6):
        super().__init__()
        self.words = nn.Embedding(200, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(depth)
        )
        self.head = nn.Linear(width, 3)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


def rate(name, decay=0.8, depth=6):
    layer = 0 if name.startswith("words") else int(name.split(".")[1]) + 1 if name.startswith("layers") else depth + 1
    return 1e-4 * decay ** (depth + 1 - layer)


def groups(model):
    return [
        {"params": [weight], "lr": rate(name), "weight_decay": 0.05 if weight.ndim > 1 else 0.0}
        for name, weight in model.named_parameters()
    ]


def groups_of_layers(model):
    found = {}
    for name, weight in model.named_parameters():
        found.setdefault((rate(name), 0.05 if weight.ndim > 1 else 0.0), []).append(weight)
    return [{"params": weights, "lr": lr, "weight_decay": decay} for (lr, decay), weights in found.items()]


def _step(groups, **options):
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(groups(model), **options)
    words, labels = torch.randint(0, 200, (4, 12)), torch.randint(0, 3, (4,))

    def step():
        loss = nn.functional.cross_entropy(model(words), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_step():
    return _step(groups)


def make_step_fixed():
    return _step(groups_of_layers, fused=True)
