"""bench.convolution_nets: ResNet-18, MobileNet-V3 (large) and a small separable net, as workloads, from torch.nn."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .workloads import Workload

# expanded channels, kernel, output channels, squeeze and excitation, hard swish, stride, as published
_MOBILENET_V3 = (
    (16, 3, 16, False, False, 1),
    (64, 3, 24, False, False, 2),
    (72, 3, 24, False, False, 1),
    (72, 5, 40, True, False, 2),
    (120, 5, 40, True, False, 1),
    (120, 5, 40, True, False, 1),
    (240, 3, 80, False, True, 2),
    (200, 3, 80, False, True, 1),
    (184, 3, 80, False, True, 1),
    (184, 3, 80, False, True, 1),
    (480, 3, 112, True, True, 1),
    (672, 3, 112, True, True, 1),
    (672, 5, 160, True, True, 2),
    (960, 5, 160, True, True, 1),
    (960, 5, 160, True, True, 1),
)


def normalised(
    channels: int,
    filters: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: Callable[[], nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """A convolution, its batch norm, and an activation."""
    layers = [
        nn.Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(filters),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.first = normalised(channels, filters, 3, stride)
        self.second = normalised(filters, filters, 3, activation=None)
        same = stride == 1 and channels == filters
        self.shortcut = nn.Identity() if same else normalised(channels, filters, 1, stride, activation=None)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [normalised(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for filters, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [ResidualBlock(channels, filters, stride), ResidualBlock(filters, filters, 1)]
            channels = filters
        self.features, self.classes = nn.Sequential(*layers), nn.Linear(512, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.features(x).mean((2, 3)))


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = max(8, (channels // 4 + 4) // 8 * 8)
        self.squeeze, self.excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))


class InvertedResidual(nn.Module):
    def __init__(
        self, channels: int, expanded: int, kernel: int, filters: int, excites: bool, swish: bool, stride: int
    ) -> None:
        super().__init__()
        activation = nn.Hardswish if swish else nn.ReLU
        layers: list[nn.Module] = []
        if expanded != channels:
            layers.append(normalised(channels, expanded, 1, activation=activation))
        layers.append(normalised(expanded, expanded, kernel, stride, expanded, activation))
        if excites:
            layers.append(SqueezeExcitation(expanded))
        layers.append(normalised(expanded, filters, 1, activation=None))
        self.layers, self.adds = nn.Sequential(*layers), stride == 1 and channels == filters

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


class MobileNetV3(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [normalised(3, 16, 3, 2, activation=nn.Hardswish)]
        channels = 16
        for expanded, kernel, filters, excites, swish, stride in _MOBILENET_V3:
            layers.append(InvertedResidual(channels, expanded, kernel, filters, excites, swish, stride))
            channels = filters
        layers.append(normalised(channels, 960, 1, activation=nn.Hardswish))
        self.features = nn.Sequential(*layers)
        self.classes = nn.Sequential(nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.features(x).mean((2, 3)))


class SeparableNet(nn.Module):
    """Depthwise and pointwise convolutions in turns, at one resolution."""

    def __init__(self, channels: int = 32, blocks: int = 4) -> None:
        super().__init__()
        layers = [normalised(1, channels, 3)]
        for _ in range(blocks):
            layers += [normalised(channels, channels, 3, groups=channels), normalised(channels, channels, 1)]
        self.features, self.classes = nn.Sequential(*layers), nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classes(self.features(x).mean((2, 3)))


def convolution_nets() -> list[Workload]:
    """In evaluation mode at batch 1, with batch norms that do something."""
    nets: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        "depthwise-separable net, 28 x 28": (SeparableNet(), (1, 1, 28, 28)),
        "ResNet-18, 224 x 224": (ResNet18(), (1, 3, 224, 224)),
        "MobileNet-V3, 224 x 224": (MobileNetV3(), (1, 3, 224, 224)),
    }
    for net, _ in nets.values():
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):
                assert layer.running_mean is not None and layer.running_var is not None
                layer.running_mean.normal_(0, 0.1)
                layer.running_var.uniform_(0.5, 1.5)
        net.eval()
    return [Workload(name, net, (torch.randn(shape),)) for name, (net, shape) in nets.items()]
