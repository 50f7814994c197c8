"""Two spawned processes train a shared model; the parent never steps, and evaluates it at last."""

import argparse

import torch
import torch.multiprocessing as mp
from hogwild_train import test, train
from images import Digits, Normalize
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--num-processes", type=int, default=2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 5, stride=4)
        self.fc = nn.Linear(144, 10)

    def forward(self, x):
        return torch.log_softmax(self.fc(torch.flatten(torch.relu(self.conv(x)), 1)), dim=1)


args = parser.parse_args()
if __name__ == "__main__":
    torch.manual_seed(1)
    mp.set_start_method("spawn", force=True)
    model = Net()
    model.share_memory()
    data = Digits(320, transform=Normalize(0.1307, 0.3081))
    processes = []
    for rank in range(args.num_processes):
        p = mp.Process(target=train, args=(rank, args, model, data))
        p.start()
        processes.append(p)
    for p in processes:
        p.join()
    test(model, Digits(64, transform=Normalize(0.1307, 0.3081), seed=6))
