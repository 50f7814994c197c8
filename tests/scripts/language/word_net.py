"""The network of ``word_model.py`` and ``write_words.py``, which is pickled whole, and their made-up text."""

import torch
from torch import nn


class WordNet(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, 2)
        self.decoder = nn.Linear(width, words)

    def forward(self, x, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return torch.log_softmax(self.decoder(self.drop(out)), dim=-1).view(-1, self.decoder.out_features), hidden

    def init_hidden(self, batch):
        weight = next(self.parameters())
        return weight.new_zeros(2, batch, self.rnn.hidden_size), weight.new_zeros(2, batch, self.rnn.hidden_size)


def text(count):
    made = torch.Generator().manual_seed(11)
    return torch.randint(0, 50, (count,), generator=made)
