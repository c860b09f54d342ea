"""Classify image files with a trained run or a saved model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from diffusionblocks import model as model_module
from diffusionblocks.data.images import read_image, to_float
from diffusionblocks.errors import InputError
from diffusionblocks.families.vit import PlainVit, VitEnsemble
from diffusionblocks.model import BlockwiseModel, read_model
from diffusionblocks.training.run import load_config, load_trained


def load_any(folder: Path) -> BlockwiseModel | PlainVit | VitEnsemble:
    """A saved model, or the newest checkpoints of a run.

    Raises:
        InputError: neither of them, or one of another family.
    """
    is_model = (folder / model_module.CONFIG_FILE).exists()
    config = read_model(folder)[0] if is_model else load_config(folder)
    if config.family != "vit":
        raise InputError(
            "run", str(folder), "a classifier", f"this one is of the family {config.family}; see dblocks sample"
        )
    return BlockwiseModel.from_pretrained(folder) if is_model else load_trained(folder, config)[0]  # type: ignore[arg-type]


@torch.no_grad()
def predict(
    model: BlockwiseModel | PlainVit | VitEnsemble, paths: Sequence[str], invert: bool = False, top: int = 3
) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """The most probable classes of image files.

    Args:
        model: a classifier of blocks, or a plain one.
        paths: image files; all are read before the first answer, so a bad one costs nothing.
        invert: invert brightness first.
        top: classes per image.

    Returns:
        (path, [(class name, probability), ...]) for each image.
    """
    first: Any = model
    if isinstance(model, BlockwiseModel):
        first = model.block_list[0]
    elif isinstance(model, VitEnsemble):
        first = model.members[0]
    config = first.backbone.config
    images = [read_image(path, config.image_size, config.num_channels, invert) for path in paths]
    for path, image in zip(paths, images, strict=True):
        x = to_float(image[None])
        logits = model(x).logits if isinstance(model, BlockwiseModel) else model(x)
        chances, classes = logits.softmax(dim=-1)[0].topk(min(top, logits.shape[-1]))
        yield path, [(config.id2label[int(k)], float(p)) for p, k in zip(chances, classes, strict=True)]
