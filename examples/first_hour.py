"""A transformer learns to name tones: the slow script of docs/guide/first_hour.md, written as papers write it.

python examples/first_hour.py
rooflight run examples/first_hour.py
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE, PITCHES, MELS, WIDTH, HEADS, LAYERS = 16_000, 24, 64, 128, 8, 2


class Tones(Dataset):
    """Clips of one second, each of one pitch, heard with a random gain and noise."""

    def __init__(self, clips: int) -> None:
        self.pitches = torch.arange(clips) % PITCHES
        time = torch.arange(RATE) / RATE
        self.clips = torch.sin(2 * torch.pi * (220 * 2 ** (self.pitches / 12))[:, None] * time)

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        clip = self.clips[place] * (0.5 + torch.rand(1)) + 0.3 * torch.randn(RATE)
        return spectrogram(clip), self.pitches[place]


def spectrogram(clip: torch.Tensor) -> torch.Tensor:
    """[samples] -> [frames, MELS]: the power in each band of each frame, in logarithms."""
    edges = torch.linspace(0, 1, MELS + 2) ** 2 * 512
    bins = torch.arange(513.0)[:, None]
    rising, falling = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2]), (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    bands = torch.minimum(rising, falling).clamp(min=0)
    window = torch.hann_window(1024)
    frames = []
    for begin in range(0, RATE - 1024, 160):
        power = torch.fft.rfft(clip[begin : begin + 1024] * window).abs() ** 2
        frames.append((power @ bands + 1e-6).log())
    return torch.stack(frames)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.scale + self.shift


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return self.outer((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """With Snake, an activation for sound: x + sin(a x)^2 / a."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.rate = nn.Parameter(torch.ones(4 * WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        return self.outer(x + torch.sin(self.rate * x) ** 2 / self.rate)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp, self.norms = Attention(), Mlp(), nn.ModuleList((Norm(), Norm()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Namer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(MELS, WIDTH), nn.Linear(WIDTH, PITCHES)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), Norm())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.blocks(self.inner(x)).mean(1))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clips", type=int, default=960)
    clips = parser.parse_args().clips
    torch.manual_seed(0)
    torch.set_num_threads(1)  # times vary less where a core is left to other programs
    loader = DataLoader(Tones(clips), batch_size=32, shuffle=True)
    model = Namer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number, (x, pitch) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), pitch)
        loss.backward()
        optimizer.step()
        if number % 10 == 9:
            print(f"step {number + 1}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
