"""Trains a recurrent model of characters on generated verses; the log keeps an eye on the layers."""
import logging
import sys
import time
import torch
import torch.nn as nn
import torch.nn.functional as F

TRUTH = {
    "cause": "The debug messages are formatted (tensors turned into text with an f-string) in every step although the level is INFO and nothing is written.",
    "lines": ["log.debug(f\"{name}: weight {p.data} grad {p.grad}\")", "watch(model)", "for name, p in model.named_parameters():"],
    "says": ["debug", "f-?string", "format", "repr|__str__|_tensor_str", "log(ging|ger)?\\b", "print", "watch", "text|string", "python|host"],
    "remedy": ["isEnabledFor", "lazy|lazily|%s|%-", "level", "remove|drop|delete", "only (if|when)", "less often|every \\w+ steps", "guard", "defer"],
}

log = logging.getLogger("poems")
VERSE = "the moon is low and the sea is slow and the night will go where the wild winds blow \n"


class CharModel(nn.Module):
    def __init__(self, symbols, width=64, layers=3):
        super().__init__()
        self.table = nn.Embedding(symbols, 32)
        self.rnn = nn.GRU(32, width, layers, batch_first=True)
        self.out = nn.Linear(width, symbols)

    def forward(self, ids):
        return self.out(self.rnn(self.table(ids))[0])


def watch(model):
    for name, p in model.named_parameters():
        log.debug(f"{name}: weight {p.data} grad {p.grad}")


def watch_mended(model):
    if log.isEnabledFor(logging.DEBUG):
        for name, p in model.named_parameters():
            log.debug("%s: weight %s grad %s", name, p.data, p.grad)


def batches(ids, steps, size=12, length=32):
    g = torch.Generator().manual_seed(4)
    for _ in range(steps):
        starts = torch.randint(0, len(ids) - length - 1, (size, 1), generator=g)
        rows = ids[starts + torch.arange(length + 1)]
        yield rows[:, :-1], rows[:, 1:]


def main():
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s", stream=sys.stdout)
    if "--mended" in sys.argv:
        globals()["watch"] = watch_mended
    torch.manual_seed(0)
    symbols = sorted(set(VERSE))
    code = {c: i for i, c in enumerate(symbols)}
    ids = torch.tensor([code[c] for c in VERSE * 60])
    model = CharModel(len(symbols))
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    start = time.perf_counter()
    for i, (x, y) in enumerate(batches(ids, 180)):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        watch(model)
        opt.step()
        if i % 45 == 0:
            log.info("step %d loss %.4f", i, loss.item())
    log.info("last loss %.4f, %.2f s", loss.item(), time.perf_counter() - start)


if __name__ == "__main__":
    main()
