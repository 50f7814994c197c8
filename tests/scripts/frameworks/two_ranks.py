"""Two ranks by torchrun and gloo, prepared by accelerate; only rank 0 prints."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    accelerator = Accelerator(cpu=args.cpu)
    torch.manual_seed(42)
    made = torch.Generator().manual_seed(3)
    x, y = torch.randn(128, 12, generator=made), torch.randint(0, 2, (128,), generator=made)
    train = DataLoader(TensorDataset(x, y), shuffle=True, batch_size=8)
    evaluation = DataLoader(TensorDataset(x[:32], y[:32]), batch_size=8)
    model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, train, evaluation = accelerator.prepare(model, optimizer, train, evaluation)
    for epoch in range(3):
        model.train()
        for inputs, targets in train:
            loss = criterion(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        right = 0
        for inputs, targets in evaluation:
            with torch.no_grad():
                outputs = model(inputs)
            predictions, references = accelerator.gather_for_metrics((outputs.argmax(-1), targets))
            right += (predictions == references).sum().item()
        accelerator.print(f"epoch {epoch}: accuracy {right / 32:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
