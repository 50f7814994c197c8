"""An LSTM over the rows of digits, with a transform that is a module."""

import argparse

import torch
import torch.nn.functional as F
from images import Digits, Normalize
from torch import nn, optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(input_size=28, hidden_size=16, batch_first=True)
        self.batchnorm = nn.BatchNorm1d(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        output, _ = self.rnn(x.reshape(-1, 28, 28))
        return F.log_softmax(self.fc(self.batchnorm(output[:, -1])), dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(1)
    data = Digits(320, transform=Normalize(0.1307, 0.3081))
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        model.train()
        for batch, target in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            loss = F.nll_loss(model(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item()!r}")
        model.eval()
        with torch.no_grad():
            right = sum(
                (model(batch).argmax(1) == target).sum().item()
                for batch, target in torch.utils.data.DataLoader(data, batch_size=64)
            )
        print(f"{right}/{len(data)} right")


if __name__ == "__main__":
    main()
