"""Streams answers of a small recurrent language model to several readers of long conversations until each has its stop mark."""
import re
import sys
import time
import torch
from torch import nn

TRUTH = {
    "cause": "After each new token the whole answer is turned back into text, to find the new piece and the stop mark, instead of decoding only the newest tokens.",
    "lines": ["text = tokenizer.decode(ids)", "pieces = [self.pieces[i] for i in ids]", "return CLEAN.sub(r\"\\1\", raw.decode(\"utf-8\", errors=\"replace\"))",
              "sent += len(reader.push(value))"],
    "says": ["decod", "detoken|tokeni[sz]er", "whole (text|answer|sequence)", "quadratic", "python|host|interpreter", r"\bsub\b|regex|\bre\.", "string|text", "push"],
    "remedy": ["increment", "only the (new|last|tail)", "tail|window|suffix", "last few", "cache", "at the end", "batch_decode", "streamer|stream(ing)? decod", "new tokens?", "keep the"],
}
MENDED = "--mended" in sys.argv
CLEAN = re.compile(r" ([.,!?;:])")


class Tokenizer:
    def __init__(self, size):
        gen = torch.Generator().manual_seed(3)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self.pieces = [" " + "".join(letters[j] for j in torch.randint(26, (int(n),), generator=gen)) for n in torch.randint(1, 7, (size,), generator=gen)]
        self.pieces[:5] = [" .", " ,", " !", " ;", " <stop>"]
        self.marks = {ord(c): b for b, c in enumerate(map(chr, range(256)))}

    def decode(self, ids):
        pieces = [self.pieces[i] for i in ids]
        raw = bytearray()
        for piece in pieces:
            raw.extend(self.marks[ord(c)] for c in piece)
        return CLEAN.sub(r"\1", raw.decode("utf-8", errors="replace"))


class Reader:
    def __init__(self, tokenizer, earlier):
        self.tokenizer, self.ids, self.done = tokenizer, list(earlier), False
        self.shown = tokenizer.decode(self.ids)

    def push(self, token):
        tokenizer = self.tokenizer
        self.ids.append(token)
        if MENDED:
            delta = tokenizer.decode([token])
            self.shown += delta
            self.done = "<stop>" in self.shown[-16:]
            return delta
        ids = self.ids
        text = tokenizer.decode(ids)
        delta, self.shown = text[len(self.shown):], text
        self.done = "<stop>" in text
        return delta


class Model(nn.Module):
    def __init__(self, vocab=600, width=128):
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(vocab, width), nn.GRUCell(width, width), nn.Linear(width, vocab)

    def forward(self, token, state):
        state = self.cell(self.embed(token), state)
        logits = self.head(state)
        logits[:, 4] = -1e9
        return logits, state


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    tokenizer, model = Tokenizer(600), Model().eval()
    readers = [Reader(tokenizer, torch.randint(5, 600, (900,)).tolist()) for _ in range(20)]
    token, state = torch.arange(20) + 5, torch.zeros(20, 128)
    start, sent = time.time(), 0
    for step in range(400):
        logits, state = model(token, state)
        token = torch.multinomial(torch.softmax(logits * 2, -1), 1).squeeze(1)
        for reader, value in zip(readers, token.tolist()):
            if not reader.done:
                sent += len(reader.push(value))
        if step % 100 == 99:
            print(f"{step + 1} tokens, {sent} characters sent")
    print(readers[0].shown[-60:], "...", sum(len(r.shown) for r in readers))
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
