"""Names of made-up towns from an endless loader, whose workers still live when the script ends."""

import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torch.utils.tensorboard import SummaryWriter


class Words(Dataset):
    def __init__(self, words):
        self.words = words

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        letters = [ord(c) - 96 for c in self.words[i]]
        x = torch.zeros(8, dtype=torch.long)
        x[1 : 1 + len(letters)] = torch.tensor(letters)
        y = torch.full((8,), -1)
        y[: len(letters)] = torch.tensor(letters)
        y[len(letters)] = 0
        return x, y


class InfiniteDataLoader:
    def __init__(self, dataset, **kwargs):
        sampler = RandomSampler(dataset, replacement=True, num_samples=int(1e10))
        self.loader = DataLoader(dataset, sampler=sampler, **kwargs)
        self.data_iter = iter(self.loader)

    def next(self):
        return next(self.data_iter)


class Tiny(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(27, n), nn.Linear(n, n), nn.Tanh(), nn.Dropout(0.1), nn.Linear(n, 27))

    def forward(self, idx, targets=None):
        logits = self.net(idx)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, 27), targets.view(-1), ignore_index=-1)
        return logits, loss


@torch.no_grad()
def sample():
    idx = torch.zeros(10, 1, dtype=torch.long)
    for _ in range(7):
        logits, _ = model(idx)
        idx = torch.cat((idx, torch.multinomial(F.softmax(logits[:, -1], dim=-1), 1)), dim=1)
    for row in idx.tolist():
        print("".join(chr(96 + c) for c in row if c))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=-1)
    parser.add_argument("-n", "--num-workers", type=int, default=1)
    parser.add_argument("--n-embd", type=int, default=16)
    parser.add_argument("-b", "--batch-size", type=int, default=16)
    args = parser.parse_args()
    print(vars(args))
    torch.manual_seed(3407)
    random.seed(3407)
    writer = SummaryWriter(log_dir="out")
    words = ["".join(random.choice("aeionrst") for _ in range(random.randint(3, 6))) for _ in range(300)]
    model = Tiny(args.n_embd)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    loader = InfiniteDataLoader(Words(words), batch_size=args.batch_size, num_workers=args.num_workers)
    step = 0
    while True:
        X, Y = loader.next()
        logits, loss = model(X, Y)
        model.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step} | loss {loss.item()!r}")
            writer.add_scalar("loss", loss.item(), step)
        if step > 0 and step % 50 == 0:
            sample()
        step += 1
        if args.max_steps >= 0 and step >= args.max_steps:
            break
