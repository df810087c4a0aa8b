"""BERT encoders of transformers, built from their configuration: no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ladder.errors import StepError
from ladder.models import Axes, InputSpec, Spec, check_axes, tracing
from ladder.weights import verify

if TYPE_CHECKING:
    import torch

# Layers, hidden size, attention heads: table 1 of arXiv 1908.08962 (the small ones) and arXiv 1810.04805.
_SIZES = {"bert-tiny": (2, 128, 2), "bert-mini": (4, 256, 4), "bert-base": (12, 768, 12), "bert-large": (24, 1024, 16)}
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OUTPUTS = ("last_hidden_state", "pooler_output")


def draw(spec: Spec) -> torch.nn.Module:
    return _built(spec, spec["weights"]["seeded"])


def load(spec: Spec, weights: Path | None) -> torch.nn.Module:
    import torch

    model = _built(spec)
    model.load_state_dict(_state(verify(spec, weights)))

    class Encoder(torch.nn.Module):
        """Takes its inputs by position in the order of the ONNX file; returns a tuple of tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor):  # type: ignore[no-untyped-def]
            # four dimensions pass as they are; from two, transformers skips a mask of ones in eager mode alone
            mask = attention_mask[:, None, None, :].bool()
            found = self.model(input_ids=input_ids, attention_mask=mask, token_type_ids=token_type_ids)
            return found.last_hidden_state, found.pooler_output

    return Encoder().eval()


def input_specs(spec: Spec, weights: Path | None) -> list[InputSpec]:
    return [InputSpec(name, "int64", (_sequence(spec),), "tokens") for name in _INPUTS]


def output_names(spec: Spec, weights: Path | None) -> list[str]:
    return list(_OUTPUTS)


def axes(spec: Spec, weights: Path | None) -> Axes:
    return check_axes(spec, {"batch": "batch", "sequence": _sequence(spec)})


def export(spec: Spec, weights: Path | None, module: torch.nn.Module | None, destination: Path) -> None:
    assert module is not None
    tokens = {0: "batch", 1: "sequence"}
    dynamic = {**dict.fromkeys(_INPUTS, tokens), "last_hidden_state": tokens, "pooler_output": {0: "batch"}}
    tracing.to_onnx(module, input_specs(spec, weights), list(_OUTPUTS), dynamic, spec["opset"], destination)


def _built(spec: Spec, seed: int = 0) -> torch.nn.Module:
    import torch
    from transformers import BertConfig, BertModel

    layers, hidden, heads = _size(spec)
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BertModel(config)


def _size(spec: Spec) -> tuple[int, int, int]:
    if spec["architecture"] not in _SIZES:
        raise StepError(
            f"unknown architecture '{spec['architecture']}' of transformers; known are {', '.join(_SIZES)}",
            permanent=True,
        )
    return _SIZES[spec["architecture"]]


def _sequence(spec: Spec) -> int:
    length = (spec.get("axes") or {}).get("sequence")
    if not isinstance(length, int):
        raise StepError(f"model {spec['name']} needs the axis 'sequence': its number of tokens", permanent=True)
    return length


def _state(path: Path) -> dict[str, torch.Tensor]:
    import torch
    from safetensors.torch import load_file

    with open(path, "rb") as stream:
        is_pickle = stream.read(4) == b"PK\3\4"  # torch saves zip files
    state = torch.load(path, map_location="cpu", weights_only=True) if is_pickle else load_file(path)
    return {name.removeprefix("bert."): tensor for name, tensor in state.items() if not name.startswith("cls.")}
