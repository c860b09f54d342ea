"""Recipes: functions that return a complete set of settings, one per row of a results table.

Precedence: recipe < preset < --config FILE < flags. What results is a frozen `RunConfig`, saved with the run.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from diffusionblocks.config import PAPER, BlockwiseConfig, read_json, validate
from diffusionblocks.errors import InputError
from diffusionblocks.training.config import Budget, TrainingConfig


class RunConfig(BlockwiseConfig, TrainingConfig):
    """Everything that determines a run's result: data, network, blocks and training."""

    recipe: str = Field(description="the recipe it started from")
    preset: Literal["default", "paper"] = Field("default", description="noise settings: ours, or the paper's")
    method: Literal["blocks", "end-to-end", "shallow", "shallow-ensemble", "checkpointing", "trunk"] = Field(
        "blocks",
        description="blocks; a control: the whole network, one with a block's number of layers, B of those averaged, "
        "the whole network with activation checkpointing; or the trunk of blocks to be trained elsewhere",
    )
    budget: Literal["layer-evaluations", "samples"] = Field(
        "layer-evaluations",
        description="what B blocks or members have as much of as the network end to end: N updates each, or N/B",
    )
    trunk: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the blocks' budget that one block over the whole noise range gets before they branch off",
    )

    dataset: Literal["digits", "fashion-mnist", "cifar-100", "tiny-imagenet"] = Field(description="data set")
    data_dir: str | None = Field(None, description="its folder, or hub:NAME; digits needs none")
    fold: int = Field(0, ge=0, le=4, description="digits: which fifth is the test split")
    flip: bool = Field(False, description="flip training images at random")
    randaugment: bool = Field(False, description="RandAugment of training images (2 operations, magnitude 9)")

    image_size: int = Field(ge=1, description="height and width of the images, pixels")
    num_channels: int = Field(ge=1, description="channels of the images")
    num_classes: int = Field(ge=2, description="number of classes")
    patch_size: int = Field(ge=1, description="height and width of a patch, pixels")
    hidden_size: int = Field(64, ge=1, description="width d")
    num_layers: int = Field(6, ge=1, description="number of layers L")
    num_heads: int = Field(4, ge=1, description="attention heads")
    intermediate_size: int | None = Field(None, ge=1, description="width of the MLP; default: 4 d")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout of hidden states")

    @model_validator(mode="after")
    def _network_fits(self) -> "RunConfig":
        if self.num_blocks > self.num_layers:
            raise InputError(
                "num_blocks", self.num_blocks, f"at most num_layers={self.num_layers}", "take fewer blocks"
            )
        split = self.layer_split
        if split is not None and sum(split) != self.num_layers:
            raise InputError("layer_split", list(split), f"counts that sum to num_layers={self.num_layers}")
        if self.method == "trunk" and not self.trunk:
            raise InputError("trunk", self.trunk, "a share above 0 for method=trunk", "set trunk=0.5, say")
        if self.trunk and self.method not in ("blocks", "trunk"):
            raise InputError("trunk", self.trunk, f"0 for method={self.method}", "only blocks have a trunk")
        if self.image_size % self.patch_size:
            near = [p for p in range(1, self.image_size + 1) if self.image_size % p == 0]
            raise InputError(
                "patch_size", self.patch_size, f"a divisor of image_size={self.image_size}", f"one of {near}"
            )
        if self.hidden_size % self.num_heads:
            raise InputError("num_heads", self.num_heads, f"a divisor of hidden_size={self.hidden_size}")
        return self

    def blockwise(self) -> BlockwiseConfig:
        """The part that makes the converted model."""
        return BlockwiseConfig(**{name: getattr(self, name) for name in BlockwiseConfig.model_fields})

    def training(self) -> TrainingConfig:
        """The part that the trainer reads; its budget is that of one unit."""
        values = {name: getattr(self, name) for name in TrainingConfig.model_fields}
        if self.budget == "samples" and self.method in ("blocks", "trunk", "shallow-ensemble"):
            if self.updates is not None:
                values["updates"] = max(1, round(self.updates / self.num_blocks))
            if self.epochs is not None:
                values["epochs"] = self.epochs / self.num_blocks
        if self.method == "checkpointing":
            values["checkpointing"] = True
        return TrainingConfig(**values)

    def unit_budget(self, num_samples: int) -> Budget:
        """The updates of each unit on a data set of this size.

        With a trunk of share s, blocks of N updates each become a trunk of B s N updates and (1 - s) N updates of each
        block after it: the same number of updates in all.

        Raises:
            InputError: a share that leaves the trunk or the blocks without an update.
        """
        updates = self.training().num_updates(num_samples)
        if not self.trunk:
            return Budget(0, updates, updates)
        shared = round(self.trunk * updates)
        if not 0 < shared < updates:
            raise InputError("trunk", self.trunk, f"a share that leaves an update to both of {updates}", "train longer")
        trunk = self.num_blocks * shared
        total = trunk + updates - shared
        return Budget(0, trunk, total) if self.method == "trunk" else Budget(trunk, total, total)

    def depth(self) -> int:
        """Layers of the largest unit: the whole network's, or those of the largest block."""
        if self.method in ("end-to-end", "checkpointing"):
            return self.num_layers
        return max(self.layer_split) if self.layer_split else math.ceil(self.num_layers / self.num_blocks)


def vit_digits() -> dict[str, Any]:
    """A 6-layer ViT on scikit-learn's digits (8x8, 1,797 images, nothing to download); minutes on a laptop."""
    return {
        "dataset": "digits",
        "image_size": 8,
        "num_channels": 1,
        "num_classes": 10,
        "patch_size": 2,
        "updates": 250,
        "batch_size": 256,
        "lr": 2e-3,
        "ema_decay": 0.99,
        "checkpoint_every": 125,
    }


def vit_fashion() -> dict[str, Any]:
    """A 6-layer ViT on Fashion-MNIST (IDX files, 60,000 + 10,000 images, --data-dir)."""
    return {
        "dataset": "fashion-mnist",
        "image_size": 28,
        "num_channels": 1,
        "num_classes": 10,
        "patch_size": 7,
        "epochs": 4,
        "batch_size": 128,
        "ema_decay": 0.999,
        "checkpoint_every": 500,
    }


def vit_cifar100() -> dict[str, Any]:
    """The paper's ViT on CIFAR-100 (Table 1, Appendix D.1): 12 layers, d 128, B = 3, 500 epochs."""
    return {
        "preset": "paper",
        "dataset": "cifar-100",
        "image_size": 32,
        "num_channels": 3,
        "num_classes": 100,
        "patch_size": 4,
        "hidden_size": 128,
        "num_layers": 12,
        "num_heads": 4,
        "dropout": 0.1,
        "flip": True,
        "randaugment": True,
        "epochs": 500,
        "batch_size": 128,
        "lr": 5e-4,
        "lr_final": 5e-5,
        "warmup": 10 / 500,
        "weight_decay": 0.01,
    }


def vit_tiny_imagenet() -> dict[str, Any]:
    """The paper's ViT on Tiny-ImageNet (Appendix D.1): 12 layers, d 768, 12 heads, B = 2, 100 epochs.

    The patch size and the end of the cosine are not stated for it; both are as for CIFAR-100 (patch 4, lr / 10).
    """
    return {
        "preset": "paper",
        "num_blocks": 2,
        "dataset": "tiny-imagenet",
        "image_size": 64,
        "num_channels": 3,
        "num_classes": 200,
        "patch_size": 4,
        "hidden_size": 768,
        "num_layers": 12,
        "num_heads": 12,
        "dropout": 0.1,
        "flip": True,
        "randaugment": True,
        "epochs": 100,
        "batch_size": 256,
        "lr": 1e-4,
        "lr_final": 1e-5,
        "warmup": 0.1,
        "weight_decay": 0.01,
    }


RECIPES: dict[str, Callable[[], dict[str, Any]]] = {
    "vit-digits": vit_digits,
    "vit-fashion": vit_fashion,
    "vit-cifar100": vit_cifar100,
    "vit-tiny-imagenet": vit_tiny_imagenet,
}


def resolve(recipe: str, config_file: Path | None = None, flags: dict[str, Any] | None = None) -> RunConfig:
    """The settings of a run: recipe < preset < config file < flags.

    Args:
        recipe: name of a recipe.
        config_file: JSON object of settings, or None.
        flags: settings given one by one.

    Raises:
        InputError: unknown recipe or setting, or a value out of range.
    """
    if recipe not in RECIPES:
        raise InputError("recipe", recipe, f"one of {', '.join(RECIPES)}", "see `dblocks recipes`")
    values, flags = RECIPES[recipe](), flags or {}
    from_file: Any = {} if config_file is None else read_json(config_file)
    if not isinstance(from_file, dict):
        raise InputError("config", str(config_file), "a JSON object of settings")
    given = {**from_file, **flags}
    if given.get("preset", values.get("preset")) == "paper":
        values |= PAPER
        # The paper's four steps are for its three blocks; another number of blocks takes at least as many steps.
        num_blocks = given.get("num_blocks", values.get("num_blocks", 3))
        if isinstance(num_blocks, int) and num_blocks > PAPER["num_sampling_steps"]:
            values["num_sampling_steps"] = num_blocks
    # A budget that is given replaces the recipe's, whichever unit either is in.
    if "updates" in given or "epochs" in given:
        values = {name: value for name, value in values.items() if name not in ("updates", "epochs")}
    source = f"{config_file}" if config_file is not None and not flags else ""
    return validate(RunConfig, {**values, **given, "recipe": recipe}, source)
