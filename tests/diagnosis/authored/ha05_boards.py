"""Compares photographed circuit boards with the drawing of their type, tile by tile, in the features of a network."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

TRUTH = {"healthy": True}


def unit(inputs, outputs, stride):
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        pairs = [unit(3, 64, 2), unit(64, 128, 2), unit(128, 128, 1), unit(128, 128, 1)]
        for conv, norm in pairs:
            norm.running_mean.uniform_(-0.2, 0.2)
            norm.running_var.uniform_(0.5, 1.5)
        self.convs = nn.ModuleList([fuse_conv_bn_eval(conv.eval(), norm.eval()) for conv, norm in pairs])

    def forward(self, x):
        for conv in self.convs:
            x = F.relu_(conv(x))
        return x


class Inspector:
    def __init__(self, types=4):
        torch.manual_seed(91)
        self.net = Features().eval().to(memory_format=torch.channels_last)
        self.drawings = torch.rand(types, 3, 192, 192)
        self.known = {}

    def tiles(self, board):
        cut = board.unfold(1, 64, 64).unfold(2, 64, 64)
        return cut.permute(1, 2, 0, 3, 4).flatten(0, 1).contiguous(memory_format=torch.channels_last)

    def drawing(self, kind):
        if kind not in self.known:
            self.known[kind] = self.net(self.tiles(self.drawings[kind]))
        return self.known[kind]

    @torch.inference_mode()
    def judge(self, board, kind):
        seen = self.net(self.tiles(board))
        return (seen - self.drawing(kind)).abs().mean((1, 2, 3))


def make_step():
    inspector = Inspector()
    g = torch.Generator().manual_seed(92)
    for kind in range(4):
        inspector.judge(inspector.drawings[kind], kind)

    def step():
        kind = int(torch.randint(0, 4, (1,), generator=g))
        board = inspector.drawings[kind] + 0.1 * torch.rand(3, 192, 192, generator=g)
        return inspector.judge(board, kind)
    return step
