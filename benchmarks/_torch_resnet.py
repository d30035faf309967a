"""Reference implementation of residual networks in PyTorch, with torchvision's parameter names.

The stride of a bottleneck is in its 3 × 3 convolution. The stem is torchvision's, or a 3 × 3
convolution without pooling. Additions and ReLUs are in place where PyTorch permits it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Residual block of two 3 × 3 convolutions, or a bottleneck of 1 × 1, 3 × 3 and 1 × 1."""

    def __init__(self, n_in: int, n: int, stride: int, is_bottleneck: bool):
        super().__init__()
        sizes, widths, strides = [3, 3], [n, n], [stride, 1]
        if is_bottleneck:
            sizes, widths, strides = [1, 3, 1], [n, n, 4 * n], [1, stride, 1]
        self.n_layers, n_channels = len(sizes), n_in
        for index, (size, width, conv_stride) in enumerate(
            zip(sizes, widths, strides, strict=True), 1
        ):
            conv = nn.Conv2d(n_channels, width, size, conv_stride, size // 2, bias=False)
            self.add_module(f"conv{index}", conv)
            self.add_module(f"bn{index}", nn.BatchNorm2d(width))
            n_channels = width
        self.downsample = None
        if stride != 1 or n_in != n_channels:
            conv = nn.Conv2d(n_in, n_channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(n_channels))
        self.n_out = n_channels

    def forward(self, x: Tensor) -> Tensor:
        """Returns the activations after the block."""
        out = x
        for index in range(1, self.n_layers + 1):
            out = self.get_submodule(f"bn{index}")(self.get_submodule(f"conv{index}")(out))
            if index < self.n_layers:
                out = F.relu(out, inplace=True)
        out += x if self.downsample is None else self.downsample(x)
        return F.relu(out, inplace=True)


class ResNet(nn.Module):
    """Features of images ``[batch, channels, rows, columns]``; ``settings`` is our ``ResNet``."""

    def __init__(self, settings: Any):
        super().__init__()
        width = settings.width
        is_large = settings.stem == "imagenet"
        size, stride = (7, 2) if is_large else (3, 1)
        self.conv1 = nn.Conv2d(settings.n_channels, width, size, stride, size // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if is_large else nn.Identity()
        n_channels, stages = width, []
        for stage, n_blocks in enumerate(settings.blocks):
            blocks = []
            for index in range(n_blocks):
                stride = 2 if stage and not index else 1
                block = Block(n_channels, width * 2**stage, stride, settings.has_bottlenecks)
                blocks.append(block)
                n_channels = block.n_out
            stages.append(nn.Sequential(*blocks))
            self.add_module(f"layer{stage + 1}", stages[-1])
        self.n_stages = len(stages)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Returns the features."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        for stage in range(1, self.n_stages + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        return x.mean((2, 3))


class Trainer:
    """Trains a ResNet with BCL's head and InfoNCE of two views, using fused Adam.

    Args:
      settings: Configuration of the network.
      images: Each example twice, ``[2 · batch, channels, rows, columns]``: two views, or uint8.
      view: Function that draws views of floats in [0, 1]; None if ``images`` are views already.
      widths: Layer widths of the head.
      temperature: Temperature that divides the cosines.
      learning_rate: Adam's learning rate.
      channels_last: Memory format of the images.
    """

    def __init__(
        self, settings: Any, images: Tensor, view: Any, widths: tuple[int, int], *,
        temperature: float, learning_rate: float, channels_last: bool,
    ):  # fmt: skip
        torch.manual_seed(0)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        head = nn.Sequential(
            nn.Linear(settings.n_features, widths[0], bias=False), nn.BatchNorm1d(widths[0]),
            nn.ReLU(inplace=True), nn.Linear(*widths),
        )  # fmt: skip
        network = nn.Sequential(ResNet(settings), head)
        self.network = network.to(memory_format=layout)  # pyright: ignore[reportCallIssue]
        self.images, self.view = images.contiguous(memory_format=layout), view
        self.layout = layout
        self.adam = torch.optim.Adam(self.network.parameters(), learning_rate, fused=True)
        n = len(images)
        self.partner, self.is_self = (torch.arange(n) + n // 2) % n, torch.eye(n, dtype=torch.bool)
        self.temperature = temperature

    def step(self) -> float:
        """Takes a step; returns the loss before it."""
        self.adam.zero_grad(set_to_none=True)
        z = F.normalize(self.network(self._views()))
        logits = (z @ z.T / self.temperature).masked_fill(self.is_self, -torch.inf)
        loss = F.cross_entropy(logits, self.partner)
        loss.backward()
        self.adam.step()
        return loss.item()

    def _views(self) -> Tensor:
        if self.view is None:
            return self.images
        with torch.no_grad():
            return self.view(self.images.float() / 255).contiguous(memory_format=self.layout)


def convert_variables(network: ResNet, settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns PyTorch's weights and running averages in the tree structure of our variables."""

    def norm(module: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        scale, bias = module.weight, module.bias
        return (
            {"scale": _to_numpy(scale), "bias": _to_numpy(bias)},
            {"mean": _to_numpy(module.running_mean), "var": _to_numpy(module.running_var)},
        )

    def kernel(module: Any) -> dict[str, Any]:
        return {"kernel": _to_numpy(module.weight.permute(2, 3, 1, 0))}

    params, batch_stats = {"conv": kernel(network.conv1)}, {}
    params["norm"], batch_stats["norm"] = norm(network.bn1)
    for stage, n_blocks in enumerate(settings.blocks, 1):
        for index in range(n_blocks):
            block: Any = network.get_submodule(f"layer{stage}.{index}")
            block_params, block_stats = {}, {}
            for layer in range(1, block.n_layers + 1):
                block_params[f"conv_{layer}"] = kernel(block.get_submodule(f"conv{layer}"))
                norms = norm(block.get_submodule(f"bn{layer}"))
                block_params[f"norm_{layer}"], block_stats[f"norm_{layer}"] = norms
            if block.downsample is not None:
                block_params["conv_skip"] = kernel(block.downsample[0])
                block_params["norm_skip"], block_stats["norm_skip"] = norm(block.downsample[1])
            name = f"block_{stage}_{index + 1}"
            params[name], batch_stats[name] = block_params, block_stats
    return params, batch_stats


def _to_numpy(x: Tensor) -> Any:
    return x.detach().contiguous().numpy()
