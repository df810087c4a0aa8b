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

RMS = 2.0  # of what a layer adds to its bias. SiLU at 2 keeps 0.67 of it, at 1 0.60, near 0 half: the less even, the
# more a picture's brightness grows or fades with depth
BIAS = RMS / 2  # largest of a batch norm in a network of SiLU: twice as much, and pictures hardly differ
CLASSIFIER_GRID = 1 / 64  # of a classifier's biases: far coarser than what hosts may differ by
_PATCH = 16  # pixels, the side of a patch of one colour: noise of single pixels averages out, pictures do not


def settle(module: torch.nn.Module, picture: InputSpec, seed: int) -> None:
    """Give every layer of a seeded module (eval, FP32, not fused) outputs of about the size ``RMS``, in place.

    Layer-sequential unit-variance initialisation (Mishkin and Matas, arXiv 1511.06422), in one pass over two random
    pictures: in the order of execution, the weights of a convolution, linear layer or attention are multiplied by the
    power of two that brings the root mean square of its output, without the bias, nearest to ``RMS``. A layer that is
    used again keeps its first factor, one without gradients (a constant of the architecture) its weights. Weights that
    are all 0, which cut off what is before them, are drawn as torch draws others.

    Two biases, all 0 or nearly so as they are drawn, are changed. Batch norms of a network with SiLU or Hardswish,
    whose gain depends on the size, get random ones: else the contrast of a picture decides whether values vanish. The
    layer that gives the module's output, a classifier, gets one that takes away what both pictures have in common,
    which after many ReLUs is nearly all.

    Every host gives the same weights: the pass is in float64, where the order of summation moves a root mean square by
    about 1e-14 of itself. Only one so near the limit between two powers (or a classifier's mean between two multiples
    of CLASSIFIER_GRID) could come out otherwise: of a thousand layers one in about 1e10 models.
    """
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(seed)
    working = copy.deepcopy(module).double()  # heads keep what they once computed for a shape, in its precision
    bends = any(isinstance(part, nn.SiLU | nn.Hardswish) for part in working.modules())
    hooks = {}
    last: tuple[Any, Any] = (None, None)  # the layer that ran last, its output

    def scale(layer: nn.Module, _: Any, output: Any) -> Any:
        nonlocal last
        hooks[layer].remove()
        found, *others = output if isinstance(output, tuple) else (output,)  # attention also gives its weights
        bias = torch.zeros(()) if _weighted(layer).bias is None else _weighted(layer).bias
        bias = bias.reshape(-1, 1, 1) if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d) else bias
        factor = _factor(found - bias)
        _weighted(layer).weight.mul_(factor)
        found = (found - bias) * factor + bias
        last = layer, found
        return (found, *others) if others else found

    with torch.no_grad():
        for part in working.modules():
            if isinstance(part, nn.BatchNorm2d) and bends:
                part.bias.uniform_(-BIAS, BIAS, generator=generator)
            elif isinstance(getattr(part, "layer_scale", None), nn.Parameter):
                part.layer_scale.fill_(1)
            elif isinstance(part, nn.Conv2d | nn.ConvTranspose2d | nn.Linear | nn.MultiheadAttention):
                weight = _weighted(part).weight
                if not weight.requires_grad:
                    continue
                if not weight.any():
                    nn.init.kaiming_uniform_(weight, math.sqrt(5), generator=generator)
                hooks[part] = part.register_forward_hook(scale)
        output = working(_pictures(picture, generator))
        if output is last[1] and isinstance(last[0], nn.Linear) and last[0].bias is not None:
            _centre(last[0], output)
    module.load_state_dict(working.state_dict())


def _weighted(layer: Any) -> Any:
    """What holds the weights that a layer's output is linear in: torch's attention runs its last layer itself."""
    return getattr(layer, "out_proj", layer)


def _factor(values: torch.Tensor) -> float:
    """The power of two that brings the root mean square of ``values`` nearest to ``RMS``; 1 where they are 0."""
    size = float(values.square().mean().sqrt())
    return 2.0 ** round(math.log2(RMS / size)) if size else 1.0


def _centre(layer: torch.nn.Linear, output: torch.Tensor) -> None:
    """Take from a classifier's outputs what they are on average over the pictures, each."""
    mean = (output - layer.bias).mean(0)
    layer.bias.copy_(-(mean / CLASSIFIER_GRID).round() * CLASSIFIER_GRID)


def _pictures(picture: InputSpec, generator: torch.Generator) -> torch.Tensor:
    """Two pictures of patches of random colours, normalised as the model wants, in float64."""
    import torch

    channels, height, width = picture.shape
    patches = (2, channels, -(-height // _PATCH), -(-width // _PATCH))
    found = torch.rand(patches, dtype=torch.float64, generator=generator)
    found = found.repeat_interleave(_PATCH, 2).repeat_interleave(_PATCH, 3)[:, :, :height, :width]
    if picture.mean is not None and picture.std is not None:
        mean, std = (torch.tensor(each, dtype=torch.float64).reshape(-1, 1, 1) for each in (picture.mean, picture.std))
        found = (found - mean) / std
    return found
