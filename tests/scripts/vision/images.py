"""Images drawn from a seed, and transforms that are modules, as torchvision's are."""

import torch
from torch import nn


class Normalize(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, image):
        return (image - self.mean) / self.std


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class Digits(torch.utils.data.Dataset):
    def __init__(self, count, size=28, channels=1, transform=None, seed=5):
        made = torch.Generator().manual_seed(seed)
        self.images = torch.rand(count, channels, size, size, generator=made)
        self.labels = torch.randint(0, 10, (count,), generator=made)
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        return (self.transform(image) if self.transform else image), int(self.labels[index])
