"""Feature extractors for FID, KID, precision and recall: a classifier trained on the same data, or Inception-v3.

Inception's features are the convention, but they are of photographs and its weights have to be at hand. A classifier
trained here on the data set's own training split sees what tells its classes apart. Distances are comparable only under
the same extractor, so each has the SHA-256 of its weights, to be kept beside every number.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Protocol

import torch
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional
from transformers import ResNetConfig, ResNetForImageClassification
from transformers.utils import logging as transformers_logging

from diffusionblocks.backbones import TRANSFORMERS
from diffusionblocks.checkpoint import atomic_folder, digest
from diffusionblocks.config import read_json, validate
from diffusionblocks.data.images import ImageSet, to_float
from diffusionblocks.data.order import batch_rows
from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.image_quality import check_pixels
from diffusionblocks.randomness import seeded

RECORD, WEIGHTS = "features.json", "model.safetensors"
BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = 128, 2e-3, 1e-2
WIDTHS = (32, 64)
"""Channels of the two stages; the last is F, the number of features."""
SMALLEST_SIZE = 32
"""Smaller images are enlarged to it: the network's stem shrinks by 4, which would leave little of 8x8 pixels."""
JUDGED = 1000
"""The accuracy in features.json is over about that many of the last training samples."""


class FeatureExtractor(Protocol):
    """Images -> features.

    Attributes:
        name: what it is, for people.
        sha256: of the weights.
        num_features: F.
    """

    name: str
    sha256: str
    num_features: int

    def __call__(self, images: Tensor, batch_size: int = 250) -> Tensor:
        """Uint8 images (N, C, H, W) -> float32 features (N, F) on the CPU, `batch_size` images at a time."""
        ...


class FeaturesRecord(BaseModel):
    """What features.json holds: which weights, of which data, and how they were trained."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    sha256: str
    num_features: int
    data: dict[str, int | str]
    settings: dict[str, int | float | str]
    accuracy: float


class ClassifierFeatures:
    """The pooled output of a small ResNet that was trained as a classifier by `train_features`.

    Args:
        network: the classifier; put in evaluation mode, so that batch normalisation uses its running statistics.
        record: what was written with it.
    """

    def __init__(self, network: ResNetForImageClassification, record: FeaturesRecord):
        self.network, self.record = network.eval(), record
        self.name, self.sha256, self.num_features = record.name, record.sha256, record.num_features

    @classmethod
    def from_folder(cls, folder: Path) -> "ClassifierFeatures":
        """Read what `train_features` wrote.

        Raises:
            InputError: missing or broken files, or weights of another SHA-256 than features.json has.
        """
        record = validate(FeaturesRecord, read_json(folder / RECORD), str(folder / RECORD))
        if not (folder / WEIGHTS).is_file() or digest(folder / WEIGHTS) != record.sha256:
            todo = f"remove {folder} and train the features again"
            raise InputError("file", str(folder / WEIGHTS), f"weights with the SHA-256 of {RECORD}", todo)
        network = TRANSFORMERS.load((ResNetForImageClassification,), folder)
        assert isinstance(network, ResNetForImageClassification)
        return cls(network, record)

    @torch.no_grad()
    def __call__(self, images: Tensor, batch_size: int = 250) -> Tensor:
        """Features of images of the kind that the classifier was trained on.

        Args:
            images: uint8, shape (N, C, H, W), with the training images' C, H and W.
            batch_size: images at a time; the result does not depend on it beyond rounding.

        Returns:
            float32, shape (N, F), on the CPU.

        Raises:
            InputError: not uint8, or images of another shape.
        """
        check_pixels(images)
        size = self.record.data["image_size"]
        shape = (self.record.data["num_channels"], size, size)
        if tuple(images.shape[1:]) != shape:
            todo = "take features of a classifier that was trained on such images"
            raise InputError("images.shape", tuple(images.shape), f"(N, C, H, W) with (C, H, W) = {shape}", todo)
        device = self.network.device
        # On the CPU at once, so that no more than a batch is ever on the device.
        return torch.cat([_pooled(self.network, part.to(device)).cpu() for part in images.split(batch_size)])


@torch.enable_grad()
def train_features(
    images: ImageSet, folder: Path, seed: int = 0, updates: int = 500, progress: bool = True
) -> ClassifierFeatures:
    """Train the classifier whose features are used, or load it if the folder has it already.

    On the CPU, by AdamW with the learning rate falling to 0 along a cosine, no augmentation: the same data, seed and
    number of updates give the same bits on the same machine. About half a minute on one core for 28x28 images.

    Args:
        images: the training split.
        folder: where config.json, model.safetensors and features.json are written, whole or not at all.
        seed: of the initial weights and the order of the data.
        updates: batches of 128 images.
        progress: show a bar on stderr.

    Raises:
        InputError: images of one class only, fewer than 1 update; a folder with features of other data or settings, or
            with anything else.
    """
    if updates < 1:
        raise InputError("updates", updates, "at least 1 update", "leave it at its default")
    if len(images.labels.unique()) < 2:
        raise InputError(
            "labels",
            int(images.labels[0]),
            "images of two classes or more, to train a classifier on",
            "take features trained on a labelled data set of such images, or inception_features(weights)",
        )
    data, settings = _describe(images), _settings(seed, updates)
    if (folder / RECORD).exists():
        found = ClassifierFeatures.from_folder(folder)
        _check_same(found.record, data, settings, folder)
        return found
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError("folder", str(folder), "features, an empty folder or none", "choose another folder")
    with seeded("cpu", seed, "features", "init"):
        network = ResNetForImageClassification(_network_config(images))
    accuracy = _train(network, images, seed, updates, progress)
    transformers_logging.disable_progress_bar()
    with atomic_folder(folder) as draft:
        network.save_pretrained(draft)
        record = FeaturesRecord(
            name=f"classifier (ResNet, F={WIDTHS[-1]}, trained on {len(images)} images)",
            sha256=digest(draft / WEIGHTS),
            num_features=WIDTHS[-1],
            data=data,
            settings=settings,
            accuracy=accuracy,
        )
        (draft / RECORD).write_text(json.dumps(record.model_dump(), indent=1) + "\n", encoding="utf-8")
    return ClassifierFeatures(network, record)


def _network_config(images: ImageSet) -> ResNetConfig:
    classes: dict[str, Any] = {"num_labels": images.num_classes}  # which the signature of the config does not name
    return ResNetConfig(
        num_channels=images.num_channels,
        embedding_size=WIDTHS[0],
        hidden_sizes=list(WIDTHS),
        depths=[1] * len(WIDTHS),
        layer_type="basic",
        downsample_in_first_stage=False,
        **classes,
    )


def _train(network: ResNetForImageClassification, images: ImageSet, seed: int, updates: int, progress: bool) -> float:
    """Train in place; returns the accuracy on the last batches, each before its update."""
    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)
    judged = min(updates, -(-JUDGED // BATCH_SIZE))
    right = 0
    bar = {"console": Console(stderr=True), "transient": True, "disable": not progress}
    for update in track(range(updates), "training the feature classifier", **bar):
        rows = torch.tensor([row for _, row in batch_rows(len(images), BATCH_SIZE, update, seed, block=0)])
        labels = images.labels[rows]
        logits = network.classifier(_pooled(network, images.images[rows]))
        optimizer.zero_grad()
        functional.cross_entropy(logits, labels).backward()
        optimizer.step()
        schedule.step()
        if update >= updates - judged:
            right += int((logits.argmax(dim=-1) == labels).sum())
    return right / (judged * BATCH_SIZE)


def _pooled(network: ResNetForImageClassification, images: Tensor) -> Tensor:
    """Uint8 (B, C, H, W) -> features (B, F)."""
    x = to_float(images)
    if x.shape[-1] < SMALLEST_SIZE:
        x = functional.interpolate(x, size=(SMALLEST_SIZE, SMALLEST_SIZE), mode="bilinear", align_corners=False)
    return network.resnet(x).pooler_output.flatten(1)


def _describe(images: ImageSet) -> dict[str, int | str]:
    """What must be equal for features to be of the same data."""
    return {
        "num_images": len(images),
        "num_channels": images.num_channels,
        "image_size": images.image_size,
        "num_classes": images.num_classes,
        "images_sha256": hashlib.sha256(images.images.contiguous().numpy().tobytes()).hexdigest(),
        "labels_sha256": hashlib.sha256(images.labels.contiguous().numpy().tobytes()).hexdigest(),
    }


def _settings(seed: int, updates: int) -> dict[str, int | float | str]:
    return {
        "seed": seed,
        "updates": updates,
        "batch_size": BATCH_SIZE,
        "optimizer": "AdamW",
        "lr": LEARNING_RATE,
        "weight_decay": WEIGHT_DECAY,
    }


def _check_same(record: FeaturesRecord, data: dict[str, Any], settings: dict[str, Any], folder: Path) -> None:
    for part, given, stored in (("data", data, record.data), ("settings", settings, record.settings)):
        for name in given:
            if stored.get(name) != given[name]:
                raise InputError(
                    f"{part}.{name}",
                    given[name],
                    f"{stored.get(name)!r}, which the features in {folder} were trained with",
                    "choose another folder for other features",
                )


class InceptionFeatures:
    """The 2048 pooled features of the Inception-v3 that FID was defined with, by torch-fidelity.

    Args:
        network: torch-fidelity's FeatureExtractorInceptionV3, which scales and resizes uint8 images itself.
        sha256: of the file of its weights.
    """

    name = "inception-v3 (torch-fidelity)"
    num_features = 2048

    def __init__(self, network: nn.Module, sha256: str):
        self.network, self.sha256 = network.eval(), sha256

    @torch.no_grad()
    def __call__(self, images: Tensor, batch_size: int = 250) -> Tensor:
        """Features of images of any size; grey ones are repeated to 3 channels.

        Args:
            images: uint8, shape (N, C, H, W).
            batch_size: images at a time; each is resized to 299x299.

        Returns:
            float32, shape (N, 2048), on the CPU.

        Raises:
            InputError: not uint8, or another shape.
        """
        check_pixels(images)
        device = next(self.network.parameters()).device
        parts = (part.expand(-1, 3, -1, -1).to(device) for part in images.split(batch_size))
        return torch.cat([self.network(part)[0].float().cpu() for part in parts])


def inception_features(weights: Path | None) -> InceptionFeatures:
    """Inception-v3 from a file of weights; nothing is ever downloaded.

    Args:
        weights: torch-fidelity's weights-inception-2015-12-05-6726825d.pth; None is refused.

    Raises:
        InputError: no file, a broken one, or torch-fidelity not installed.
    """
    known = "weights-inception-2015-12-05-6726825d.pth, from torch-fidelity's releases"
    if weights is None or not weights.is_file():
        value = None if weights is None else str(weights)
        raise InputError("weights", value, "a file with the weights of Inception-v3", f"give the path of {known}")
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import (  # pyright: ignore[reportMissingImports]
            FeatureExtractorInceptionV3,
        )
    except ImportError as error:
        # It may also be one of its own dependencies (torchvision), which the reason names.
        todo = "pip install torch-fidelity, or use train_features"
        raise InputError("torch_fidelity", str(error), "the package torch-fidelity, for Inception-v3", todo) from error
    try:
        network = FeatureExtractorInceptionV3(
            "inception-v3-compat", ["2048"], feature_extractor_weights_path=str(weights)
        )
    except Exception as error:
        # torch.load and load_state_dict raise RuntimeError, UnpicklingError, EOFError, KeyError and more.
        reason = f"it cannot be read: {type(error).__name__}: {error}"[:300]
        raise InputError("weights", str(weights), known, reason) from error
    return InceptionFeatures(network, digest(weights))
