"""A few images of a split with what the network answers after each block of its chain."""

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diffusionblocks.block import plan_of
from diffusionblocks.data.images import ImageSet, to_float
from diffusionblocks.evaluation.grid import picture
from diffusionblocks.families.vit import chain, log_probs
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.report.sampled import png_uri
from diffusionblocks.sampling import initial_state

FEW = 6
BATCH = 250


@dataclass(frozen=True)
class Answer:
    """The top class after a stage of the network ("block 1"), its probability, and whether it is the true one."""

    stage: str
    name: str
    probability: float
    correct: bool


@dataclass(frozen=True)
class Sample:
    """An image of the split, as a PNG data URI, with the answers to it; the last one counts."""

    index: int
    image: str
    true: str
    answers: tuple[Answer, ...]


@torch.no_grad()
def choose_samples(model: nn.Module, images: ImageSet, result: dict[str, Any]) -> list[Sample]:
    """The first FEW images of a split and the first FEW others that the network gets wrong, in that order.

    Args:
        model: blocks, or a plain network that maps images to logits; in evaluation mode.
        images: the split.
        result: its evaluation, which says where the chain starts and how many steps it takes.
    """
    first, wrong = list[Sample](), list[Sample]()
    for sample in _answered(model, images, result):
        if sample.index < FEW:
            first.append(sample)
        elif not sample.answers[-1].correct:
            wrong.append(sample)
        if len(wrong) == FEW:
            break
    return first + wrong


def _answered(model: nn.Module, images: ImageSet, result: dict[str, Any]) -> Iterator[Sample]:
    """Every image of the split with the answers to it, as they are asked for."""
    device = next(model.parameters()).device
    state = _start(model, images, result) if isinstance(model, BlockwiseModel) else None
    for begin in range(0, len(images), BATCH):
        rows = range(begin, min(begin + BATCH, len(images)))
        x = to_float(images.images[rows.start : rows.stop]).to(device)
        if isinstance(model, BlockwiseModel):
            assert state is not None
            plan = plan_of(model.config, result["num_sampling_steps"])
            logs = chain(model.block_list, x, state[rows.start : rows.stop].to(device), plan)
            stages = {f"block {block}": logs[step] for block, step in plan.last_steps().items()}
        else:
            stages = {"network": log_probs(model(x))}
        for row, index in enumerate(rows):
            label = int(images.labels[index])
            answers = tuple(_answer(stage, log[row], label, images.classes) for stage, log in stages.items())
            yield Sample(index, _data_uri(images.images[index]), images.classes[label], answers)


def _start(model: BlockwiseModel, images: ImageSet, result: dict[str, Any]) -> Tensor:
    """Where every sample's chain starts: as in an evaluation with its default seed."""
    plan = plan_of(model.config, result["num_sampling_steps"])
    shape = len(images), model.targets.shape[1]
    return initial_state(shape, plan, result["start"], keyed_generator(0, "start", 0))


def _answer(stage: str, log: Tensor, label: int, classes: tuple[str, ...]) -> Answer:
    top = int(log.argmax())
    return Answer(stage, classes[top], math.exp(float(log[top])), top == label)


def _data_uri(image: Tensor) -> str:
    """A uint8 image (C, H, W) as a PNG inside a data URI."""
    out = io.BytesIO()
    picture(image).save(out, format="PNG", optimize=True)
    return png_uri(out.getvalue())
