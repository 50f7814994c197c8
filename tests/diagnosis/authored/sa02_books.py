"""Learns what readers like from the books they borrowed, by Bayesian personalised ranking."""
import random
import sys
import time
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = {
    "cause": "A negative is drawn until it is not among the reader's books, which are kept in a Python list: each test walks the list; a set answers at once.",
    "lines": ["while book in self.shelf[reader]:", "return reader, liked, self.negative(reader)", "self.shelf[reader].append(book)", "self.shelf = [[] for _ in range(readers)]",
              "for readers, liked, other in loader:"],
    "says": ["\\bin\\b.*(list|shelf)", "list", "membership|contains", "negative", "__getitem__", "linear (scan|search)", "loader|data ?set", "search", "python|host"],
    "remedy": ["\\bsets?\\b", "hash", "dict", "vectori[sz]e", "bool(ean)? (mask|matrix)|bitmap", "searchsorted|bisect", "isin", "workers?", "precomput"],
}


class Loans(Dataset):
    def __init__(self, readers=60, books=6000, each=1500):
        rng = random.Random(0)
        self.books = books
        self.shelf = [[] for _ in range(readers)]
        for reader in range(readers):
            for book in rng.sample(range(books), each):
                self.shelf[reader].append(book)
        self.pairs = [(reader, book) for reader in range(readers) for book in rng.sample(self.shelf[reader], 200)]

    def __len__(self):
        return len(self.pairs)

    def negative(self, reader):
        book = random.randrange(self.books)
        while book in self.shelf[reader]:
            book = random.randrange(self.books)
        return book

    def __getitem__(self, i):
        reader, liked = self.pairs[i]
        return reader, liked, self.negative(reader)


class LoansMended(Loans):
    def __init__(self):
        super().__init__()
        self.shelf = [set(books) for books in self.shelf]


class Taste(nn.Module):
    def __init__(self, readers=60, books=6000, width=64):
        super().__init__()
        self.reader, self.book = nn.Embedding(readers, width), nn.Embedding(books, width)
        self.bias = nn.Embedding(books, 1)

    def score(self, reader, book):
        return (self.reader(reader) * self.book(book)).sum(1) + self.bias(book).squeeze(1)


def main():
    random.seed(0)
    torch.manual_seed(0)
    data = (LoansMended if "--mended" in sys.argv else Loans)()
    loader = DataLoader(data, batch_size=256, shuffle=True)
    model = Taste()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.05)
    start = time.perf_counter()
    for epoch in range(9):
        total = 0.0
        for readers, liked, other in loader:
            margin = model.score(readers, liked) - model.score(readers, other)
            loss = -F.logsigmoid(margin).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")
    print(f"trained in {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    main()
