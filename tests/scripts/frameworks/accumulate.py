"""Accelerate wraps the optimizer: ``step`` is called for each micro-batch, and does nothing but for every third."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_dataloaders(batch_size):
    made = torch.Generator().manual_seed(3)
    x, y = torch.randint(0, 64, (128, 12), generator=made), torch.randint(0, 2, (128,), generator=made)
    train = DataLoader(TensorDataset(x, y), shuffle=True, batch_size=batch_size)
    return train, DataLoader(TensorDataset(x[:32], y[:32]), batch_size=16)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 2)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, y):
        logits = self.head(self.layer(self.embedding(x)).mean(1))
        return logits, self.loss(logits, y)


def training_function(args):
    accelerator = Accelerator(cpu=args.cpu, gradient_accumulation_steps=args.gradient_accumulation_steps)
    torch.manual_seed(42)
    train, evaluation = get_dataloaders(8)
    model = Classifier()
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=48)
    model, optimizer, train, evaluation, scheduler = accelerator.prepare(model, optimizer, train, evaluation, scheduler)
    for epoch in range(3):
        model.train()
        for x, y in train:
            with accelerator.accumulate(model):
                _, loss = model(x, y)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        model.eval()
        right = 0
        for x, y in evaluation:
            with torch.no_grad():
                logits, _ = model(x, y)
            predictions, references = accelerator.gather_for_metrics((logits.argmax(-1), y))
            right += (predictions == references).sum().item()
        accelerator.print(f"epoch {epoch}:", {"accuracy": right / 32, "loss": loss.item()})


def main():
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--cpu", action="store_true")
    training_function(parser.parse_args())


if __name__ == "__main__":
    main()
