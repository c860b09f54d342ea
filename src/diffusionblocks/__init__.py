"""Train residual networks block by block: each block alone, as a denoiser in its own range of noise levels."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffusionblocks.block import Block
    from diffusionblocks.config import (
        BlockwiseConfig,
        CausalLmConfig,
        DitConfig,
        MaskedLmConfig,
        RecurrentLmConfig,
        VitConfig,
    )
    from diffusionblocks.conversion import convert
    from diffusionblocks.data.batches import ImageBatches, NextTokenBatches, TensorBatches, TextBatches
    from diffusionblocks.errors import InputError, TrainingError
    from diffusionblocks.model import BlockwiseModel
    from diffusionblocks.noise import LogNormal, Masking
    from diffusionblocks.sampling import SamplingPlan, sample
    from diffusionblocks.training.config import TrainingConfig
    from diffusionblocks.training.trainer import Trainer

__version__ = "0.1.0"

_HOME = {
    "Block": "block",
    "BlockwiseConfig": "config",
    "BlockwiseModel": "model",
    "CausalLmConfig": "config",
    "DitConfig": "config",
    "ImageBatches": "data.batches",
    "InputError": "errors",
    "LogNormal": "noise",
    "MaskedLmConfig": "config",
    "Masking": "noise",
    "NextTokenBatches": "data.batches",
    "RecurrentLmConfig": "config",
    "SamplingPlan": "sampling",
    "TensorBatches": "data.batches",
    "TextBatches": "data.batches",
    "Trainer": "training.trainer",
    "TrainingConfig": "training.config",
    "TrainingError": "errors",
    "VitConfig": "config",
    "convert": "conversion",
    "sample": "sampling",
}

__all__ = [
    "Block",
    "BlockwiseConfig",
    "BlockwiseModel",
    "CausalLmConfig",
    "DitConfig",
    "ImageBatches",
    "InputError",
    "LogNormal",
    "MaskedLmConfig",
    "Masking",
    "NextTokenBatches",
    "RecurrentLmConfig",
    "SamplingPlan",
    "TensorBatches",
    "TextBatches",
    "Trainer",
    "TrainingConfig",
    "TrainingError",
    "VitConfig",
    "convert",
    "sample",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that the command line answers before torch is imported."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
