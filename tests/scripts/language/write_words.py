"""Words from a pickled model under no_grad: one call a word, its state carried over."""

import argparse

import torch
import word_net

parser = argparse.ArgumentParser()
parser.add_argument("--words", type=int, default=100)
parser.add_argument("--outf", default="generated.txt")
parser.add_argument("--log-interval", type=int, default=100)
args = parser.parse_args()

torch.manual_seed(1111)
torch.save(word_net.WordNet(50, 16), "model.pt")
with open("model.pt", "rb") as f:
    model = torch.load(f, map_location="cpu", weights_only=False)
model.eval()
hidden = model.init_hidden(1)
input_ids = torch.randint(50, (1, 1), dtype=torch.long)
with open(args.outf, "w") as outf, torch.no_grad():
    for i in range(args.words):
        output, hidden = model(input_ids, hidden)
        word = torch.multinomial(output.squeeze().exp(), 1)[0]
        input_ids.fill_(word)
        outf.write(f"{word}" + ("\n" if i % 20 == 19 else " "))
        if i % args.log_interval == 0:
            print(f"| Generated {i}/{args.words} words")
