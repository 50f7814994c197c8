"""A language model of two LSTM layers, its weights moved by hand, states carried from step to step."""

import math

import torch
from torch import nn

device = torch.device("cuda")
torch.manual_seed(1111)
vocab, width, layers, batch, length = 10000, 650, 2, 20, 35


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(vocab, width)
        self.rnn, self.decoder = nn.LSTM(width, width, layers, dropout=0.2), nn.Linear(width, vocab)

    def forward(self, words, state):
        out, state = self.rnn(self.drop(self.encoder(words)), state)
        return torch.log_softmax(self.decoder(self.drop(out)).view(-1, vocab), dim=1), state


def repackage(state):
    return state.detach() if isinstance(state, torch.Tensor) else tuple(repackage(part) for part in state)


source = torch.randint(vocab, (20 * length + 1, batch)).to(device)
model = Words().to(device)
criterion, lr, total = nn.NLLLoss(), 20.0, 0.0
state = (torch.zeros(layers, batch, width, device=device), torch.zeros(layers, batch, width, device=device))
model.train()
for number, start in enumerate(range(0, 20 * length, length)):
    model.zero_grad()
    state = repackage(state)
    out, state = model(source[start : start + length], state)
    loss = criterion(out, source[start + 1 : start + 1 + length].view(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-lr)
    total += loss.item()
    if number % 5 == 4:
        print(f"| {number + 1} batches | loss {total / 5:5.2f} | ppl {math.exp(min(total / 5, 20)):8.2f}")
        total = 0.0
