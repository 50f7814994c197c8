"""A prefetcher copies the next batch from pinned memory while this one is in use: two batches alive."""
import torch
from torch import nn

model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 128 * 128, 256), nn.ReLU(), nn.Linear(256, 100)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
stream = torch.cuda.Stream()


def batches(count):
    def load():
        images = torch.zeros(128, 3, 128, 128).pin_memory()  # 24 MiB
        labels = torch.zeros(128, dtype=torch.long).pin_memory()
        with torch.cuda.stream(stream):
            return images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)

    ahead = load()
    for _ in range(count):
        torch.cuda.current_stream().wait_stream(stream)
        current, ahead = ahead, load()
        yield current


for step, (images, labels) in enumerate(batches(5)):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
