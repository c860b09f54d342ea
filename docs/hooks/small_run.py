"""A training run small enough to make while the site is built."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from transformers import ViTConfig

from diffusionblocks import TensorBatches, Trainer, TrainingConfig, convert


def losses_of_a_small_run() -> tuple[list[dict[str, Any]], TrainingConfig]:
    """Rows of metrics.jsonl of three blocks on the digits, and the settings of the run."""
    torch.set_num_threads(1)  # small networks lose more to threads that wait for each other than they gain
    digits = load_digits()
    images = torch.from_numpy(digits.images).float()[:, None] / 8 - 1
    network = ViTConfig(
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=10,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
    )
    config = TrainingConfig(updates=80, batch_size=64, lr=5e-3, rotate_every=5)
    with tempfile.TemporaryDirectory() as folder:
        batches = TensorBatches(images, torch.from_numpy(digits.target))
        model = convert(network, num_blocks=3)
        Trainer(model, batches, config, folder, progress=False, measure_memory=False).train()
        lines = [p.read_text(encoding="utf-8").splitlines() for p in sorted(Path(folder).glob("*/metrics.jsonl"))]
    return [json.loads(line) for part in lines for line in part], config
