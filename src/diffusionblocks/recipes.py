"""Recipes: functions that return a complete set of settings, one per row of a results table.

Precedence: recipe < preset < --config FILE < flags. What results is a frozen `RunConfig`, saved with the run.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from diffusionblocks.config import read_json, validate
from diffusionblocks.errors import InputError
from diffusionblocks.presets import PAPER
from diffusionblocks.run_config import AnyRun, run_config_class
from diffusionblocks.text_recipes import (
    ar_lm1b,
    ar_owt,
    ar_pydoc,
    ar_shakespeare,
    huginn_lm1b,
    huginn_pydoc,
    huginn_shakespeare,
    mdm_pydoc,
    mdm_shakespeare,
    mdm_text8,
)


def vit_digits() -> dict[str, Any]:
    """A 6-layer ViT on scikit-learn's digits (8x8, 1,797 images, nothing to download); minutes on a laptop."""
    return {
        "family": "vit",
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
        "family": "vit",
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
        "family": "vit",
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
        "family": "vit",
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


def dit_digits() -> dict[str, Any]:
    """A 6-layer DiT on scikit-learn's digits (8x8, 1,797 images, nothing to download); minutes on a laptop."""
    return {
        "family": "dit",
        "dataset": "digits",
        "image_size": 8,
        "num_channels": 1,
        "num_classes": 10,
        "patch_size": 2,
        "updates": 600,
        "batch_size": 128,
        "lr": 5e-3,
        "weight_decay": 0.0,
        "ema_decay": 0.99,
        "checkpoint_every": 300,
    }


def dit_fashion() -> dict[str, Any]:
    """A 6-layer DiT on Fashion-MNIST (IDX files, 60,000 + 10,000 images, --data-dir)."""
    return {
        "family": "dit",
        "dataset": "fashion-mnist",
        "image_size": 28,
        "num_channels": 1,
        "num_classes": 10,
        "patch_size": 4,
        "updates": 800,
        "batch_size": 64,
        "lr": 8e-3,
        "weight_decay": 0.0,
        "ema_decay": 0.99,
        "checkpoint_every": 400,
    }


def dit_folder() -> dict[str, Any]:
    """A DiT on your own images: a folder of class folders, or hub:NAME (--data-dir); cropped and resized to 32x32."""
    return {
        "family": "dit",
        "dataset": "folder",
        "image_size": 32,
        "num_channels": 3,
        "patch_size": 4,
        "hidden_size": 128,
        "num_layers": 6,
        "epochs": 100,
        "batch_size": 64,
        "lr": 1e-3,
        "weight_decay": 0.0,
        "ema_decay": 0.999,
    }


def dit_latent() -> dict[str, Any]:
    """A DiT on latents that `dblocks encode` made of your images (--data-dir)."""
    return {
        "family": "dit",
        "dataset": "latents",
        "image_size": 32,
        "num_channels": 4,
        "patch_size": 2,
        "hidden_size": 128,
        "num_layers": 6,
        "epochs": 100,
        "batch_size": 64,
        "lr": 1e-3,
        "weight_decay": 0.0,
        "ema_decay": 0.999,
    }


def dit_s2_cifar10() -> dict[str, Any]:
    """The paper's DiT-S/2 on CIFAR-10 (Appendix D): 12 layers, d 384, 6 heads, B = 3, 100 epochs.

    Weight decay, warm-up and the average of weights are not stated; DiT's own are taken (0, none, 0.9999).
    """
    return {
        "family": "dit",
        "preset": "paper",
        "dataset": "cifar-10",
        "image_size": 32,
        "num_channels": 3,
        "num_classes": 10,
        "patch_size": 2,
        "hidden_size": 384,
        "num_layers": 12,
        "num_heads": 6,
        "epochs": 100,
        "batch_size": 512,
        "lr": 1e-4,
        "lr_final": 1e-4,
        "warmup": 0.0,
        "weight_decay": 0.0,
        "ema_decay": 0.9999,
    }


def dit_l2_imagenet() -> dict[str, Any]:
    """The paper's DiT-L/2 on ImageNet-256 latents (Appendix D): 24 layers, d 1024, 16 heads, B = 3.

    The latents are those of `dblocks encode` with the autoencoder of DiT; what is not stated is as for DiT-S/2.
    """
    return {
        "family": "dit",
        "preset": "paper",
        "dataset": "latents",
        "image_size": 32,
        "num_channels": 4,
        "num_classes": 1000,
        "patch_size": 2,
        "hidden_size": 1024,
        "num_layers": 24,
        "num_heads": 16,
        "epochs": 100,
        "batch_size": 512,
        "lr": 5e-5,
        "lr_final": 5e-5,
        "warmup": 0.0,
        "weight_decay": 0.0,
        "ema_decay": 0.9999,
    }


RECIPES: dict[str, Callable[[], dict[str, Any]]] = {
    "vit-digits": vit_digits,
    "vit-fashion": vit_fashion,
    "vit-cifar100": vit_cifar100,
    "vit-tiny-imagenet": vit_tiny_imagenet,
    "dit-digits": dit_digits,
    "dit-fashion": dit_fashion,
    "dit-folder": dit_folder,
    "dit-latent": dit_latent,
    "dit-s2-cifar10": dit_s2_cifar10,
    "dit-l2-imagenet": dit_l2_imagenet,
    "mdm-pydoc": mdm_pydoc,
    "mdm-shakespeare": mdm_shakespeare,
    "mdm-text8": mdm_text8,
    "ar-pydoc": ar_pydoc,
    "ar-shakespeare": ar_shakespeare,
    "ar-lm1b": ar_lm1b,
    "ar-owt": ar_owt,
    "huginn-pydoc": huginn_pydoc,
    "huginn-shakespeare": huginn_shakespeare,
    "huginn-lm1b": huginn_lm1b,
}


def family_of_recipe(recipe: str) -> str:
    """The family of a recipe's networks.

    Raises:
        InputError: unknown recipe.
    """
    if recipe not in RECIPES:
        raise InputError("recipe", recipe, f"one of {', '.join(RECIPES)}", "see `dblocks recipes`")
    return RECIPES[recipe]()["family"]


def resolve(recipe: str, config_file: Path | None = None, flags: dict[str, Any] | None = None) -> AnyRun:
    """The settings of a run: recipe < preset < config file < flags.

    Args:
        recipe: name of a recipe.
        config_file: JSON object of settings, or None.
        flags: settings given one by one.

    Raises:
        InputError: unknown recipe or setting, or a value out of range.
    """
    family, flags = family_of_recipe(recipe), flags or {}
    values = RECIPES[recipe]()
    from_file: Any = {} if config_file is None else read_json(config_file)
    if not isinstance(from_file, dict):
        raise InputError("config", str(config_file), "a JSON object of settings")
    given = {**from_file, **flags}
    if given.get("preset", values.get("preset")) == "paper":
        paper = PAPER[family]
        values |= paper
        # The paper's steps are for its three blocks; another number of blocks takes at least as many steps.
        num_blocks = given.get("num_blocks", values.get("num_blocks", 3))
        if isinstance(num_blocks, int) and num_blocks > paper.get("num_sampling_steps", num_blocks):
            values["num_sampling_steps"] = num_blocks
    # A budget that is given replaces the recipe's, whichever unit either is in.
    if "updates" in given or "epochs" in given:
        values = {name: value for name, value in values.items() if name not in ("updates", "epochs")}
    source = f"{config_file}" if config_file is not None and not flags else ""
    if given.get("family", family) != family:
        raise InputError("family", given["family"], f"{family}, as in {recipe}", "take a recipe of it")
    return validate(run_config_class(values), {**values, **given, "recipe": recipe}, source)
