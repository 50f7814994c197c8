"""A tagger of two LSTM layers over packed sequences of many lengths, in both directions."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Tagger(nn.Module):
    def __init__(self, vocab=5000, width=256, tags=20):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, width, padding_idx=0), nn.Linear(2 * width, tags)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embed(words), lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, (h, c) = self.lstm(packed)
        out, lengths = pad_packed_sequence(out, batch_first=True)
        return self.head(out), lengths


torch.manual_seed(3)
model = Tagger().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    lengths = torch.randint(5, 60, (32,))
    words = pad_sequence([torch.randint(1, 5000, (int(n),)) for n in lengths], batch_first=True).to(device)
    scores, found = model(words, lengths.to(device))
    mask = torch.arange(words.shape[1], device=device)[None] < found.to(device)[:, None]
    loss = nn.functional.cross_entropy(scores[mask], (words % 20)[mask])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: {int(mask.sum())} words, loss {loss.item():.3f}")
