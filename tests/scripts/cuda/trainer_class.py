"""A trainer class with callbacks after minGPT: its device is "cuda" where there is one, else the CPU."""

import time
from collections import defaultdict
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Sorts(Dataset):
    def __len__(self):
        return 10000

    def __getitem__(self, place):
        numbers = torch.randint(3, (64,))
        whole = torch.cat((numbers, torch.sort(numbers)[0]))
        x, y = whole[:-1].clone(), whole[1:].clone()
        y[: len(numbers) - 1] = -1
        return x, y


class Trainer:
    def __init__(self, config, model, data):
        self.config, self.data, self.callbacks = config, data, defaultdict(list)
        self.device = ("cuda" if torch.cuda.is_available() else "cpu") if config.device == "auto" else config.device
        self.model = model.to(self.device)
        print("running on device", self.device)

    def run(self):
        model = self.model
        decay = [p for p in model.parameters() if p.dim() > 1]
        plain = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=5e-4, betas=(0.9, 0.95))
        sampler = RandomSampler(self.data, replacement=True, num_samples=int(1e5))
        loader = DataLoader(self.data, sampler=sampler, batch_size=64, pin_memory=True, num_workers=2)
        self.iteration, self.at, batches = 0, time.time(), iter(loader)
        model.train()
        while self.iteration < self.config.iterations:
            x, y = (part.to(self.device) for part in next(batches))
            self.loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-1)
            model.zero_grad(set_to_none=True)
            self.loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self.optimizer.step()
            for call in self.callbacks["batch_end"]:
                call(self)
            self.iteration += 1


class Model(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.tokens, self.places = nn.Embedding(3, width), nn.Embedding(127, width)
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(127))

    def forward(self, x):
        x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.layers(x, mask=self.mask[: x.shape[1], : x.shape[1]], is_causal=True))

    @torch.no_grad()
    def write(self, x, count):
        for _ in range(count):
            probabilities = self(x)[:, -1].softmax(-1)
            x = torch.cat((x, torch.multinomial(probabilities, 1)), 1)
        return x


def after_batch(trainer):
    if trainer.iteration % 2 == 0:
        print(f"iter {trainer.iteration}: train loss {trainer.loss.item():.5f}")
    if trainer.iteration == 1:
        trainer.model.eval()
        found = trainer.model.write(torch.zeros(1, 1, dtype=torch.long, device=trainer.device), 8)
        print("".join(str(int(each)) for each in found[0]))
        trainer.model.train()


trainer = Trainer(SimpleNamespace(device="auto", iterations=8), Model(), Sorts())
trainer.callbacks["batch_end"].append(after_batch)
trainer.run()
