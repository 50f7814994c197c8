"""Trains a captioner: features of a picture start a recurrent decoder; targets are smoothed a little."""
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "Label smoothing is done with a dense target distribution over the vocabulary for every word (full matrix made, scattered into, multiplied); cross_entropy(label_smoothing=...) or a gather and a mean need none.",
    "lines": ["soft = torch.full_like(logp, eps / vocab)", "soft.scatter_(1, words.unsqueeze(1), 1 - eps + eps / vocab)", "return -(soft * logp).sum(1).mean()",
              "loss = self.criterion(logits.flatten(0, 1), words.flatten())", "logp = F.log_softmax(logits, 1)"],
    "says": ["smooth", "dense", "one.?hot", "full_like", "scatter", "soft (label|target)", "distribution", "criterion", "cross.?entropy", "loss", r"\bmul\b"],
    "remedy": ["label_smoothing", "cross_entropy", "gather", "nll_loss", "fused", "without (the|a|building|making).*(dense|one.?hot|target)", "compile"],
}


def smoothed(logits, words, eps=0.1):
    vocab = logits.shape[1]
    logp = F.log_softmax(logits, 1)
    soft = torch.full_like(logp, eps / vocab)
    soft.scatter_(1, words.unsqueeze(1), 1 - eps + eps / vocab)
    return -(soft * logp).sum(1).mean()


def smoothed_fixed(logits, words, eps=0.1):
    return F.cross_entropy(logits, words, label_smoothing=eps)


class Captioner(nn.Module):
    def __init__(self, vocab=12000, width=32):
        super().__init__()
        self.start = nn.Linear(256, width)
        self.table = nn.Embedding(vocab, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, picture, words):
        h = torch.tanh(self.start(picture)).unsqueeze(0)
        x = F.pad(self.table(words[:, :-1]), (0, 0, 1, 0))
        return self.out(self.rnn(x, h)[0])


class Trainer:
    def __init__(self, criterion):
        torch.manual_seed(41)
        self.model, self.criterion = Captioner(), criterion
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.5)
        self.g = torch.Generator().manual_seed(42)

    def step(self):
        picture = torch.randn(24, 256, generator=self.g)
        words = torch.randint(0, 12000, (24, 16), generator=self.g)
        logits = self.model(picture, words)
        loss = self.criterion(logits.flatten(0, 1), words.flatten())
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()


def make_step():
    return Trainer(smoothed).step


def make_step_fixed():
    return Trainer(smoothed_fixed).step
