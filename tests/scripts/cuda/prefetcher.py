"""apex' DataPrefetcher: the next batch is copied and normalised on a side stream while the model runs."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader


def fast_collate(batch, memory_format):
    images = [item[0] for item in batch]
    targets = torch.tensor([item[1] for item in batch], dtype=torch.int64)
    tensor = torch.zeros((len(images), 3, 160, 160), dtype=torch.uint8).contiguous(memory_format=memory_format)
    for i, image in enumerate(images):
        tensor[i] += torch.from_numpy(np.rollaxis(image, 2).copy())
    return tensor, targets


class DataPrefetcher:
    def __init__(self, loader):
        self.loader, self.stream = iter(loader), torch.cuda.Stream()
        self.mean = torch.tensor([0.485 * 255, 0.456 * 255, 0.406 * 255]).cuda().view(1, 3, 1, 1)
        self.std = torch.tensor([0.229 * 255, 0.224 * 255, 0.225 * 255]).cuda().view(1, 3, 1, 1)
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = self.next_target = None
            return
        with torch.cuda.stream(self.stream):
            self.next_input = self.next_input.cuda(non_blocking=True)
            self.next_target = self.next_target.cuda(non_blocking=True)
            self.next_input = self.next_input.float().sub_(self.mean).div_(self.std)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        input, target = self.next_input, self.next_target
        if input is not None:
            input.record_stream(torch.cuda.current_stream())
        if target is not None:
            target.record_stream(torch.cuda.current_stream())
        self.preload()
        return input, target


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 192

    def __getitem__(self, place):
        return np.full((160, 160, 3), place % 255, dtype=np.uint8), place % 10


torch.backends.cudnn.benchmark = True
memory_format = torch.channels_last
model = nn.Sequential(
    nn.Conv2d(3, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(128, 10),
).cuda().to(memory_format=memory_format)  # fmt: skip
scaler, optimizer = torch.cuda.amp.GradScaler(init_scale=128.0), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
loader = DataLoader(
    Images(), 32, shuffle=True, num_workers=2, pin_memory=True, collate_fn=lambda b: fast_collate(b, memory_format)
)
fetcher = DataPrefetcher(loader)
input, target = fetcher.next()
i = 0
while input is not None:
    i += 1
    with torch.autocast(device_type="cuda"):
        loss = nn.functional.cross_entropy(model(input), target)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.cuda.synchronize()
    print(f"[{i}] {loss.item():.3f} {tuple(input.shape)} {scaler.get_scale()}")
    input, target = fetcher.next()
