"""Generates product texts with a small recurrent decoder that must not say the same three words twice."""
import torch
from torch import nn

TRUTH = {
    "cause": "For each new token the table of all n-grams of each text is built anew in Python from its first word on, instead of adding the newest n-gram to it.",
    "lines": ["for i in range(len(words) - self.n + 1):", "table.setdefault(tuple(words[i:i + self.n - 1]), []).append(words[i + self.n - 1])",
              "banned = self.rule.banned(row, words)", "table = {}", "return table.get(tuple(words[1 - self.n:]), [])", "for row, words in enumerate(texts):"],
    "says": ["n-?gram", "banned", "setdefault", "(python|host)( |-)?(code|loop|time)", "rebuil[dt]", "re-?scan", "quadratic", "history", "interpreter", "tuple"],
    "remedy": ["increment", "only the (newest|last|new)", "keep .*(table|dict|n-?gram)", "cache", "update", "append", "vectori[sz]e", "unfold",
               "tensor op", "once", "persist", "move .*off the host"],
}


class NoRepeat:
    def __init__(self, rows, n=3):
        self.n = n

    def banned(self, row, words):
        table = {}
        for i in range(len(words) - self.n + 1):
            table.setdefault(tuple(words[i:i + self.n - 1]), []).append(words[i + self.n - 1])
        return table.get(tuple(words[1 - self.n:]), [])


class NoRepeatIncremental:
    def __init__(self, rows, n=3):
        self.n, self.tables, self.seen = n, [{} for _ in range(rows)], [0] * rows

    def banned(self, row, words):
        table = self.tables[row]
        for start in range(self.seen[row], len(words) - self.n + 1):
            *head, last = words[start:start + self.n]
            table.setdefault(tuple(head), []).append(last)
        self.seen[row] = len(words) - self.n + 1
        return table.get(tuple(words[len(words) + 1 - self.n:]), [])


class Writer(nn.Module):
    def __init__(self, rule, vocab=400, width=96):
        super().__init__()
        torch.manual_seed(0)
        self.make_rule = rule
        self.embed = nn.Embedding(vocab, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, vocab)
        self.prompts = torch.randint(vocab, (8, 300)).tolist()

    @torch.inference_mode()
    def generate(self, new=30):
        texts = [list(p) for p in self.prompts]
        self.rule = self.make_rule(len(texts))
        state = torch.zeros(len(texts), 96)
        last = torch.tensor([t[-1] for t in texts])
        for _ in range(new):
            state = self.cell(self.embed(last), state)
            logits = self.head(state)
            for row, words in enumerate(texts):
                banned = self.rule.banned(row, words)
                if banned:
                    logits[row, banned] = -float("inf")
            last = logits.argmax(-1)
            for words, word in zip(texts, last.tolist()):
                words.append(word)
        return torch.tensor(texts)


def make_step():
    return Writer(NoRepeat).generate


def make_step_fixed():
    return Writer(NoRepeatIncremental).generate
