"""Forecast of a pollutant over a city: emission, drift with the wind, Gaussian dispersion, washout by rain."""
import torch
import torch.nn.functional as F

TRUTH = {
    "cause": "The Gaussian is applied as one dense two-dimensional filter of 33 x 33, though it is a product of two one-dimensional ones.",
    "lines": ["return F.conv2d(padded, self.weight)", "self.weight = torch.outer(line, line)[None, None]", "field = self.disperse(field)"],
    "says": ["conv2d", "convolution", "separable", "two-dimensional (filter|kernel)", "gaussian", "kernel (size|of)", "disperse", "large filter"],
    "remedy": ["separabl", "two (1-?d|one-dimensional)", "rows? (and|then) column", "one-dimensional", "1-?d (conv|filter|pass)", "fft", "outer product", "box filter", "factor"],
}


class Dispersion:
    def __init__(self, sigma=5.0, radius=16):
        offsets = torch.arange(-radius, radius + 1, dtype=torch.float32)
        line = torch.exp(-offsets.square() / (2 * sigma ** 2))
        line = line / line.sum()
        self.radius, self.line = radius, line
        self.weight = torch.outer(line, line)[None, None]

    def disperse(self, field):
        padded = F.pad(field, [self.radius] * 4, mode="replicate")
        return F.conv2d(padded, self.weight)


class TwoPass(Dispersion):
    def disperse(self, field):
        padded = F.pad(field, [self.radius] * 4, mode="replicate")
        rows = F.conv2d(padded, self.line.view(1, 1, -1, 1))
        return F.conv2d(rows, self.line.view(1, 1, 1, -1))


class City:
    def __init__(self, physics):
        gen = torch.Generator().manual_seed(0)
        self.disperse = physics.disperse
        self.sources = (torch.rand(2, 1, 200, 200, generator=gen) > 0.999).float()
        self.rain = 1 - 0.05 * torch.rand(2, 1, 200, 200, generator=gen)

    def forecast(self, hours=2):
        field = torch.zeros_like(self.sources)
        for hour in range(hours):
            field = field + 3.0 * self.sources
            field = torch.roll(field, shifts=(1, 2), dims=(2, 3))
            field = self.disperse(field)
            field = field * self.rain
        return field


def make_step():
    return City(Dispersion()).forecast


def make_step_fixed():
    return City(TwoPass()).forecast
