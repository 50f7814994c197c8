"""Neural style after the tutorial: LBFGS moves an image, its closure runs forward and backward on the GPU."""

import torch
from torch import nn, optim

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_default_device(device)
sizes = [(3, 64), (64, 64), (64, 128), (128, 128)]
layers = [nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU()) for a, b in sizes]
for layer in layers:
    layer.eval().requires_grad_(False)


def gram(x):
    b, c, h, w = x.size()
    flat = x.view(b * c, h * w)
    return torch.mm(flat, flat.t()).div(b * c * h * w)


def features(x):
    found = []
    for layer in layers:
        x = layer(x)
        found.append(x)
    return found


style, content = torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)
wanted, kept = [gram(each).detach() for each in features(style)], features(content)[-1].detach()
image = content.clone().requires_grad_(True)
optimizer = optim.LBFGS([image])
run = [0]
while run[0] <= 60:

    def closure():
        with torch.no_grad():
            image.clamp_(0, 1)
        optimizer.zero_grad()
        found = features(image)
        style_score = sum(nn.functional.mse_loss(gram(each), want) for each, want in zip(found, wanted))
        content_score = nn.functional.mse_loss(found[-1], kept)
        loss = 1e6 * style_score + content_score
        loss.backward()
        run[0] += 1
        if run[0] % 20 == 0:
            print(f"run {run[0]}: style {style_score.item():4f} content {content_score.item():4f}")
        return loss

    optimizer.step(closure)
