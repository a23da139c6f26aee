"""Networks for the tests of the import, as somebody would write them in PyTorch: small, with few channels."""
from typing import Dict

import torch
import torch.nn.functional as F
import torchvision
from torch import nn


class Block(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(2, outer)

    def forward(self, x):
        return F.silu(self.norm2(self.conv2(F.silu(self.norm1(self.conv1(x))))))


class Gate(nn.Module):
    """Attention: what comes from below decides where to look at what comes from the left."""

    def __init__(self, below, left, inner):
        super().__init__()
        self.below = nn.Conv2d(below, inner, 1)
        self.left = nn.Conv2d(left, inner, 1, bias=False)
        self.one = nn.Conv2d(inner, 1, 1)

    def forward(self, below, left):
        return left * torch.sigmoid(self.one(F.silu(self.below(below) + self.left(left))))


class AttentionUNet(nn.Module):
    """For every pixel one of three classes; any image size."""

    def __init__(self, width=8):
        super().__init__()
        self.down1, self.down2, self.down3 = Block(3, width), Block(width, 2 * width), Block(2 * width, 4 * width)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.gate2, self.gate1 = Gate(2 * width, 2 * width, width), Gate(width, width, width)
        self.up2, self.up1 = Block(4 * width, width), Block(2 * width, width)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(self.pool(a))
        c = self.down3(self.pool(b))
        y = F.interpolate(self.up(c), size=b.shape[-2:], mode="nearest")
        y = self.up2(torch.cat([y, self.gate2(y, b)], 1))
        y = F.interpolate(y, size=a.shape[-2:], mode="bilinear", align_corners=True)
        return self.head(self.up1(torch.cat([y, self.gate1(y, a)], 1)))


class Mixed(nn.Module):
    """Whatever the networks of torchvision do not have: arithmetic with numbers, odd padding, several outputs."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 4, padding="same")
        self.norm1 = nn.InstanceNorm2d(8, affine=True)
        self.act = nn.PReLU(8)
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2, padding=1, padding_mode="reflect")
        self.norm2 = nn.BatchNorm2d(8, momentum=0.3, eps=1e-3)
        self.drop = nn.Dropout2d(0.25)
        self.head = nn.Linear(8, 4)
        self.other = nn.Linear(8, 4)
        self.last = nn.Dropout(0.5)

    def forward(self, x):
        x = self.act(self.norm1(self.conv1(x * 2 - 0.5)))
        x = 1 - 0.3 * self.drop(self.norm2(self.conv2(x)))
        x = F.leaky_relu(x, 0.1) + F.elu(x[:, :, 1:, :-1].mean((2, 3), keepdim=True))
        a, b = x.chunk(2, 1)
        x = torch.cat([F.hardtanh(b, -2.0, 2.0), F.selu(a)], 1)
        x = F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False).flatten(2).mean(2)
        return {"main": self.head(self.last(x)), "other": self.other(x)}


class TwoHeads(nn.Module):
    """An auxiliary head in the middle, as googlenet has them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.side, self.head = nn.Linear(8, 5), nn.Linear(16, 5)

    def forward(self, x):
        x = self.first(x)
        side = self.side(self.pool(x).flatten(1))
        return self.head(self.pool(self.second(x)).flatten(1)), side


class TwoPlanes(nn.Module):
    """Masks, with an auxiliary head of another size, as fcn and deeplabv3 return them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.side, self.head = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x) -> Dict[str, torch.Tensor]:
        first = self.first(x)
        return {"out": self.head(self.second(first)), "aux": self.side(first)}


class DataLoop(nn.Module):
    def forward(self, x):
        while bool(x.mean() > 0):
            x = x - 1
        return x


class Unknown(nn.Module):
    """Three operators that have no word, in three places."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(dim=1))
        self.second = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Softplus())

    def forward(self, x):
        return torch.cumsum(self.second(self.first(x)), 1)


class Volume(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(3, 4, 3)

    def forward(self, x):
        return self.conv(x.unsqueeze(2))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        return self.conv(self.conv(x)).mean((2, 3))


class Fixed(nn.Module):
    """For images of 32x32 only: the linear layer sees every pixel."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=4, padding=1)
        self.head = nn.Linear(4 * 8 * 8, 3)

    def forward(self, x):
        return self.head(torch.flatten(F.relu(self.conv(x)), 1))


def convnext():
    setting = torchvision.models.convnext.CNBlockConfig
    return torchvision.models.convnext.ConvNeXt(
        [setting(16, 32, 1), setting(32, 48, 2), setting(48, None, 1)], stochastic_depth_prob=0.3, num_classes=5)


def shufflenet():
    return torchvision.models.ShuffleNetV2([1, 2, 1], [16, 32, 64, 64, 128], num_classes=5)


def densenet():
    return torchvision.models.DenseNet(8, (2, 3), 16, bn_size=2, drop_rate=0.1, num_classes=5)


def save(network, path, example=None):
    """Scripted, or traced with an example."""
    scripted = torch.jit.script(network) if example is None else torch.jit.trace(
        network, example, strict=False, check_trace=False)
    scripted.save(path)
