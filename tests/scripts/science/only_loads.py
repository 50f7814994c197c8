"""Iterates a loader with two workers and computes nothing."""

import torch
import torch.utils.data as Data

torch.manual_seed(1)
x, y = torch.linspace(1, 10, 10), torch.linspace(10, 1, 10)
loader = Data.DataLoader(dataset=Data.TensorDataset(x, y), batch_size=5, shuffle=True, num_workers=2)


def show_batch():
    for epoch in range(3):
        for step, (batch_x, batch_y) in enumerate(loader):
            print("Epoch: ", epoch, "| Step: ", step, "| batch x: ", batch_x.numpy(), "| batch y: ", batch_y.numpy())


if __name__ == "__main__":
    show_batch()
