"""Continues chats with a small recurrent model; each word is drawn from the forty likeliest of a large vocabulary."""
import torch
from torch import nn

TRUTH = {
    "cause": "The logits of the whole vocabulary are sorted for each token, though only the forty largest are needed: topk does that.",
    "lines": ["values, words = logits.sort(dim=-1, descending=True)", "return values[:, :k], words[:, :k]", "values, words = self.largest(logits, self.k)"],
    "says": [r"\bsort", "argsort", "order(s|ed|ing)?", "whole vocabulary", "largest", "sliced away", "most of .*(unread|unused|thrown)"],
    "remedy": [r"top-?k", "partial (sort|selection)", "kthvalue", "partition", "only the (k|forty|40|largest)"],
}


class Chat(nn.Module):
    def __init__(self, vocab=24000, width=48, k=40):
        super().__init__()
        torch.manual_seed(0)
        self.k = k
        self.embed = nn.Embedding(vocab, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, vocab, bias=False)

    def largest(self, logits, k):
        values, words = logits.sort(dim=-1, descending=True)
        return values[:, :k], words[:, :k]

    def draw(self, logits, gen):
        values, words = self.largest(logits, self.k)
        weights = torch.softmax(values / 0.8, -1)
        choice = torch.multinomial(weights, 1, generator=gen)
        return words.gather(1, choice).squeeze(1)

    @torch.inference_mode()
    def reply(self, last, new=10):
        gen = torch.Generator().manual_seed(1)
        state = torch.zeros(len(last), self.cell.hidden_size)
        written = []
        for _ in range(new):
            state = self.cell(self.embed(last), state)
            last = self.draw(self.head(state), gen)
            written.append(last)
        return torch.stack(written, 1)


class LeanChat(Chat):
    def largest(self, logits, k):
        return logits.topk(k, dim=-1)


def build(kind):
    model = kind().eval()
    prompt = torch.arange(4) * 11
    return lambda: model.reply(prompt)


def make_step():
    return build(Chat)


def make_step_fixed():
    return build(LeanChat)
