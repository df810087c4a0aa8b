"""From a PyTorch module to a simplified ONNX file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ladder.errors import StepError
from ladder.models import InputSpec

if TYPE_CHECKING:
    import torch


def to_onnx(
    module: torch.nn.Module,
    inputs: list[InputSpec],
    outputs: list[str],
    dynamic: dict[str, dict[int, str]],
    opset: int,
    destination: Path,
) -> None:
    """Trace ``module`` at batch 1 and write the ONNX file, simplified by onnxslim.

    ``dynamic`` names the dynamic dimensions of inputs and outputs by their index. torch's newer exporter
    (``dynamo=True``) writes opset 18 whatever is asked, so the tracing one is used. Raises StepError
    for an operator that it cannot write in that opset.
    """
    import onnx
    import onnxslim
    import torch

    example = tuple(torch.zeros((1, *each.shape), dtype=getattr(torch, each.dtype)) for each in inputs)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing warns of every Python branch; parity decides
        results = module(*example)
        names = outputs[: 1 if isinstance(results, torch.Tensor) else len(results)]
        try:
            torch.onnx.export(
                module,
                example,
                str(destination),
                opset_version=opset,
                input_names=[each.name for each in inputs],
                output_names=names,
                dynamic_axes={name: dims for name, dims in dynamic.items() if name in names or name not in outputs},
                dynamo=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise StepError(f"torch cannot export this model at opset {opset}: {error}", permanent=True) from error
    model = onnxslim.slim(onnx.load(destination))
    del model.graph.value_info[:]  # onnxslim names inner dimensions by hash order: other bytes every time, some wrong
    model.producer_version = ""  # torch's, which the id names: equal graphs of two releases are equal files
    onnx.save(model, destination)
