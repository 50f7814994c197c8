"""A rover plans by trying futures in its own simulator; a value network rates where each of them ends."""
import copy
import random
import sys
import time
import torch
from torch import nn

TRUTH = {
    "cause": "For each imagined future the whole simulator, with all tiles of its map, is copied deeply, though only position, energy and the looted tiles change.",
    "lines": ["sim = copy.deepcopy(env)", "ends = [imagine(env, plan) for plan in plans]"],
    "says": ["deepcopy|deep copy|copied deeply", r"\bcop(y|ies|ied|ying)\b", "simulator|env", "host|python", "clone", "imagine"],
    "remedy": ["snapshot|restore|reset", "only .*(state|change|position|what)", "shallow", "share|static", "__deepcopy__", "undo|roll ?back", "save and", "light", "immutable|copy[- ]on[- ]write",
               "without copying|avoid (the )?(deep)?cop"],
}
MENDED = "--mended" in sys.argv


class Tile:
    def __init__(self, slope, ore):
        self.slope, self.ore = slope, ore


class Rover:
    def __init__(self, side=16):
        rng = random.Random(0)
        self.side = side
        self.tiles = {(x, y): Tile(rng.random(), rng.random() ** 4) for x in range(side) for y in range(side)}
        self.x = self.y = side // 2
        self.energy, self.looted = 10.0, set()

    def state(self):
        return self.x, self.y, self.energy, set(self.looted)

    def restore(self, state):
        self.x, self.y, self.energy, looted = state
        self.looted = set(looted)

    def step(self, action):
        dx, dy = ((0, 1), (0, -1), (1, 0), (-1, 0))[action]
        self.x, self.y = (self.x + dx) % self.side, (self.y + dy) % self.side
        tile = self.tiles[self.x, self.y]
        gain = 0.0 if (self.x, self.y) in self.looted else tile.ore
        self.looted.add((self.x, self.y))
        self.energy = 0.99 * self.energy - 0.1 * tile.slope + 0.1
        return gain - 0.05 * tile.slope

    def sees(self):
        around = [self.tiles[(self.x + i) % self.side, (self.y + j) % self.side] for i in (-1, 0, 1) for j in (-1, 0, 1)]
        return [self.energy / 10] + [t.slope for t in around] + [t.ore for t in around]


def imagine(env, plan):
    if MENDED:
        before = env.state()
        result = sum(env.step(a) for a in plan), env.sees()
        env.restore(before)
        return result
    sim = copy.deepcopy(env)
    return sum(sim.step(a) for a in plan), sim.sees()


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    value = nn.Sequential(nn.Linear(19, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1)).eval()
    env, rng, total, start = Rover(), random.Random(1), 0.0, time.time()
    for step in range(100):
        plans = [[rng.randrange(4) for _ in range(12)] for _ in range(32)]
        ends = [imagine(env, plan) for plan in plans]
        gains = torch.tensor([gain for gain, _ in ends])
        worth = gains + 0.3 * value(torch.tensor([seen for _, seen in ends])).squeeze(1)
        total += env.step(plans[worth.argmax().item()][0])
        if step % 25 == 24:
            print(f"step {step + 1}: gathered {total:.4f}, energy {env.energy:.3f}")
    print(f"loop {time.time() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
