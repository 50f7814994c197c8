"""A word language model without an optimizer: the gradient is subtracted by hand, and Ctrl-C ends training early."""

import argparse

import torch
import word_net
from torch import nn

parser = argparse.ArgumentParser(description="a model of words")
parser.add_argument("--emsize", type=int, default=16)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--bptt", type=int, default=8)
parser.add_argument("--lr", type=float, default=2.0)
parser.add_argument("--log-interval", type=int, default=3)
parser.add_argument("--save", default="model.pt")
args = parser.parse_args()

torch.manual_seed(1111)
corpus = word_net.text(260)
train_data, val_data = corpus[:200].view(4, 50).t().contiguous(), corpus[200:].view(4, 15).t().contiguous()
model = word_net.WordNet(50, args.emsize)
criterion = nn.NLLLoss()
lr = args.lr


def get_batch(source, i):
    n = min(args.bptt, len(source) - 1 - i)
    return source[i : i + n], source[i + 1 : i + 1 + n].reshape(-1)


def evaluate(data_source):
    model.eval()
    total = 0.0
    hidden = model.init_hidden(4)
    with torch.no_grad():
        for i in range(0, data_source.size(0) - 1, args.bptt):
            data, targets = get_batch(data_source, i)
            output, hidden = model(data, hidden)
            total += len(data) * criterion(output, targets).item()
    return total / (len(data_source) - 1)


def train():
    model.train()
    hidden = model.init_hidden(4)
    for batch, i in enumerate(range(0, 48, args.bptt)):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = tuple(h.detach() for h in hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        if batch % args.log_interval == 0 and batch > 0:
            print(f"| epoch {epoch:3d} | {batch} batches | loss {loss.item():.9f}", flush=True)


best = None
try:
    for epoch in range(1, args.epochs + 1):
        train()
        val_loss = evaluate(val_data)
        print(f"| end of epoch {epoch:3d} | valid loss {val_loss:.9f}", flush=True)
        if not best or val_loss < best:
            with open(args.save, "wb") as f:
                torch.save(model, f)
            best = val_loss
        else:
            lr /= 4.0
except KeyboardInterrupt:
    print("-" * 89)
    print("Exiting from training early")

with open(args.save, "rb") as f:
    model = torch.load(f, weights_only=False)
    model.rnn.flatten_parameters()
print("=" * 89)
print(f"| End of training | test loss {evaluate(val_data):.9f}")
print("=" * 89)
