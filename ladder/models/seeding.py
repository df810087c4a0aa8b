"""Seeded weights under which a picture reaches the outputs, as it does under trained ones.

As the libraries draw them, values shrink with every layer: in YOLO11n's last stages below what FP16 can tell from 0,
so that every picture gives the same scores, those of the last biases.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

from ladder.models import InputSpec

if TYPE_CHECKING:
    import torch

RMS = 2.0  # SiLU at 2 keeps 0.66 of it, at 1 0.60, near 0 half: the less even, the more contrast grows or fades
BIAS = RMS / 2  # largest of a batch norm in a network of SiLU: twice as much, and pictures hardly differ
GRID = 1 / 64  # of the last biases: far coarser than what hosts may differ by
DARK = 0.25  # share of its brightness that the second picture keeps: photographs differ as much
_PATCH = 16  # pixels, the side of a patch of one colour: noise of single pixels averages out, pictures do not


def settle(module: torch.nn.Module, picture: InputSpec, seed: int, ends: list[torch.nn.Module]) -> None:
    """Give every layer of a seeded module (eval, FP32, not fused) outputs of about the size ``RMS``, in place.

    Layer-sequential unit-variance initialisation (Mishkin and Matas, arXiv 1511.06422), in one pass over two random
    pictures: in the order of execution, the weights of a convolution, linear layer or attention are multiplied by the
    power of two that brings the root mean square of its output, without the bias, nearest to ``RMS``. A layer that is
    used again keeps its first factor, one without gradients (a constant of the architecture) its weights. Weights that
    are all 0, which cut off what is before them, are drawn as torch draws others.

    Two kinds of biases change. Batch norms of a network with SiLU or Hardswish, whose gain depends on the size, get
    random ones: else the contrast of a picture decides whether values vanish. ``ends``, the layers that give the
    outputs, are measured without each channel's mean, and their biases take it away: after many ReLUs it is nearly all.

    Every host gives the same weights: the pass is in float64, where another order of summation was seen to move a root
    mean square by 1e-15 of itself. Were it 1e-14, and one so near the limit between two powers, or a mean so near that
    between two multiples of GRID, would come out otherwise: with a thousand of each, one model in 1e8.
    """
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(seed)
    # a copy: heads keep what they once computed for a shape, in its precision
    working, ends = copy.deepcopy((module, ends))
    working.double()
    bends = any(isinstance(part, nn.SiLU | nn.Hardswish) for part in working.modules())
    hooks: dict[nn.Module, Any] = {}
    convolutions = (nn.Conv2d, nn.ConvTranspose2d)

    def scale(layer: nn.Module, _: Any, output: Any) -> Any:
        hooks[layer].remove()
        found, *others = output if isinstance(output, tuple) else (output,)  # attention also gives its weights
        weighted, channels = _weighted(layer), 1 if isinstance(layer, convolutions) else found.ndim - 1
        rest = [axis for axis in range(found.ndim) if axis != channels]
        bias = torch.zeros(found.shape[channels]) if weighted.bias is None else weighted.bias
        centred = layer in ends and weighted.bias is not None
        mean = found.mean(rest) - bias if centred else torch.zeros_like(bias)

        def along(values: torch.Tensor) -> torch.Tensor:
            return values.reshape([-1 if axis == channels else 1 for axis in range(found.ndim)])

        factor = _factor(found - along(bias + mean))
        scaled = (found - along(bias)) * factor
        weighted.weight.mul_(factor)
        if centred:
            weighted.bias.sub_((mean * factor / GRID).round() * GRID)
        scaled += along(bias)  # as it is now
        return (scaled, *others) if others else scaled

    with torch.no_grad():
        for part in working.modules():
            if isinstance(part, nn.BatchNorm2d) and bends:
                part.bias.uniform_(-BIAS, BIAS, generator=generator)
            elif isinstance(getattr(part, "layer_scale", None), nn.Parameter):
                part.layer_scale.fill_(1)
            elif isinstance(part, (*convolutions, nn.Linear, nn.MultiheadAttention)):
                weight = _weighted(part).weight
                if not weight.requires_grad:
                    continue
                if not weight.any():
                    nn.init.kaiming_uniform_(weight, math.sqrt(5), generator=generator)
                hooks[part] = part.register_forward_hook(scale)
        working(_pictures(picture, generator))
    module.load_state_dict(working.state_dict())


def _weighted(layer: Any) -> Any:
    """What holds the weights that a layer's output is linear in: torch's attention runs its last layer itself."""
    return getattr(layer, "out_proj", layer)


def _factor(values: torch.Tensor) -> float:
    """The power of two that brings the root mean square of ``values`` nearest to ``RMS``; 1 where they are 0."""
    size = float(values.square().mean().sqrt())
    return 2.0 ** round(math.log2(RMS / size)) if size else 1.0


def _pictures(picture: InputSpec, generator: torch.Generator) -> torch.Tensor:
    """Two pictures of patches of random colours, one dark, normalised as the model wants, in float64."""
    import torch

    channels, height, width = picture.shape
    patches = (2, channels, -(-height // _PATCH), -(-width // _PATCH))
    found = torch.rand(patches, dtype=torch.float64, generator=generator)
    found[1] *= DARK
    found = found.repeat_interleave(_PATCH, 2).repeat_interleave(_PATCH, 3)[:, :, :height, :width]
    if picture.mean is not None and picture.std is not None:
        mean, std = (torch.tensor(each, dtype=torch.float64).reshape(-1, 1, 1) for each in (picture.mean, picture.std))
        found = (found - mean) / std
    return found
