"""The learning rate as a function of a block's own updates."""

import math

from diffusionblocks.training.config import TrainingConfig


def learning_rate(update: int, num_updates: int, config: TrainingConfig) -> float:
    """Linear warm-up to lr over the first share of the updates, then a cosine down to lr_final.

    Args:
        update: number of the update, from 0.
        num_updates: updates of the unit in all.
        config: lr, lr_final and warmup.
    """
    warm = round(config.warmup * num_updates)
    if update < warm:
        return config.lr * (update + 1) / warm
    progress = (update - warm) / max(1, num_updates - warm)
    return config.lr_final + (config.lr - config.lr_final) * 0.5 * (1.0 + math.cos(math.pi * progress))
