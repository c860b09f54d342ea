"""How good a generator of images is: its samples against real ones, and its error at every noise level.

The error says where a model loses: each block is asked at levels of its own interval, on real images of the split under
noise, so blocks, the network end to end and the shallow network are compared level by level.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from diffusionblocks.block import edges_of, held, plan_of
from diffusionblocks.data.images import ImageSet, to_float, to_uint8
from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.image_quality import image_quality, samples_needed
from diffusionblocks.families.dit import check_sampling, generate
from diffusionblocks.memory import forward_memory
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.randomness import keyed_generator
from diffusionblocks.training.data import Images

NUM_LEVELS = 24
ERROR_IMAGES = 1000


@dataclass(frozen=True)
class GenerationOptions:
    """How to sample and what to compare.

    Attributes:
        samples: images generated for each seed, of all classes in turn.
        seeds: seeds of the start noise.
        num_sampling_steps, sampler, guidance: None: as the model's config says.
        batch_size: images at a time.
        features: what FID is measured with: "inception", "none", or the folder of a classifier; None: beside the run.
        vae: folder of the autoencoder that decodes latents.
    """

    samples: int = 1000
    seeds: Sequence[int] = (0, 1, 2)
    num_sampling_steps: int | None = None
    sampler: str | None = None
    guidance: float | Sequence[float] | None = None
    batch_size: int = 100
    features: str | None = None
    vae: str | None = None


def sample_classes(count: int, classes: Sequence[int]) -> Tensor:
    """Classes of `count` images: the given ones in turn, (count,) int64."""
    return torch.tensor([classes[k % len(classes)] for k in range(count)])


@torch.no_grad()
def evaluate_generator(
    model: BlockwiseModel,
    data: Images,
    features: Any | None,
    options: GenerationOptions | None = None,
    to_images: Callable[[Tensor], Tensor] = to_uint8,
) -> tuple[dict[str, Any], Tensor]:
    """Samples against the real images of a split, the denoising error by level, and what a sample costs.

    Args:
        model: the blocks (or the one block of a control).
        data: the split.
        features: what FID, KID, precision and recall are measured with; None leaves them out.
        options: how to sample.
        to_images: what the model generates as uint8 images (latents are decoded).

    Returns:
        (result as plain data, samples of the first seed (N, C, H, W) uint8).
    """
    options = options or GenerationOptions()
    model.eval()
    config: Any = model.config
    request = {
        "sampler": options.sampler or config.sampler,
        "guidance": config.guidance if options.guidance is None else options.guidance,
    }
    plan = plan_of(config, options.num_sampling_steps)
    blocks: list[Any] = model.block_list
    check_sampling(request["sampler"], request["guidance"], len(blocks))
    if features is not None and options.samples < (needed := samples_needed(features.num_features)):
        raise InputError("samples", options.samples, f"at least {needed} for FID with these features", "generate more")
    labels = sample_classes(options.samples, range(blocks[0].num_classes))
    real: Any = None if features is None else features(_real_images(data, to_images))
    sampling, shown = [], None
    for seed in options.seeds:
        images = to_images(generate(held(blocks), labels, plan, seed=seed, batch_size=options.batch_size, **request))
        shown = images if shown is None else shown
        quality = {} if features is None else image_quality(real, features(images), seed)
        sampling.append({"seed": seed, **quality})
    assert shown is not None
    errors = denoising_errors(model, data)
    result: dict[str, Any] = {}
    if features is not None:
        result |= {name: float(np.mean([one[name] for one in sampling])) for name in QUALITY}
        spread = np.std([one["fid"] for one in sampling], ddof=1) if len(sampling) > 1 else math.nan
        result["fid_se"] = None if math.isnan(spread) else float(spread / math.sqrt(len(sampling)))
        result["features"] = {"name": features.name, "sha256": features.sha256, "num_features": features.num_features}
    return {
        **result,
        "samples": options.samples,
        "sampling": sampling,
        **request,
        "num_sampling_steps": len(plan.steps),
        "plan": plan.describe(),
        "denoising": errors,
        "denoising_error": float(np.mean([row["error"] for row in errors])),
        **flops(model, plan, request),
        "memory_bytes": sampling_memory(model, request, labels[: options.batch_size]),
    }, shown


QUALITY = ("fid", "kid", "precision", "recall")


@torch.no_grad()
def denoising_errors(
    model: BlockwiseModel, data: Images, num_levels: int = NUM_LEVELS, num_images: int = ERROR_IMAGES, seed: int = 0
) -> list[dict[str, Any]]:
    """Weighted squared error of D on images of a split under noise, at levels of equal mass of the noise law.

    Returns:
        {"sigma", "block", "error"} for each level, noisiest first; error is the mean over the first `num_images`. The
        mean over levels is the expected training loss over the whole range, up to the overlap of the intervals.
    """
    law, edges = model.config.law(), edges_of(model.config)
    masses = 1.0 - (torch.arange(num_levels, dtype=torch.float64) + 0.5) / num_levels
    blocks: list[Any] = model.block_list
    rows = []
    for level, sigma in enumerate(law.icdf(masses).tolist()):
        # Which block a level belongs to is asked here alone, to score it; sampling goes by the plan.
        index = next(k for k in range(len(blocks)) if sigma >= edges[k + 1])
        total, count = 0.0, min(num_images, len(data))
        generator = keyed_generator(seed, "denoising", level)
        for first in range(0, count, 500):
            which = torch.arange(first, min(first + 500, count))
            y, labels = _rows(data, which)
            noise = torch.randn(y.shape, generator=generator)
            device = next(blocks[index].parameters()).device
            levels = torch.full((len(y),), sigma, dtype=torch.float64, device=device)
            error = blocks[index].error(labels.to(device), y.to(device), levels, noise.to(device))
            total += float(error.double().sum())
        rows.append({"sigma": sigma, "block": index, "error": total / count})
    return rows


def flops(model: BlockwiseModel, plan: Any, request: dict[str, Any]) -> dict[str, float]:
    """Floating point operations of one image: of a denoising step (mean over the plan, without guidance), of all."""
    by_block = {}
    for block in model.block_list:
        device = next(block.parameters()).device
        z, sigma = torch.zeros(1, *block.target_shape, device=device), torch.ones(1, device=device)
        with FlopCounterMode(display=False) as counter:
            block(torch.zeros(1, dtype=torch.long, device=device), z, sigma)
        by_block[block.index] = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        generate(held(model.block_list), torch.zeros(1, dtype=torch.long), plan, **request)
    per_step = float(np.mean([by_block[step.block] for step in plan.steps]))
    return {"flops_per_step": per_step, "flops_per_image": counter.get_total_flops()}


def sampling_memory(model: BlockwiseModel, request: dict[str, Any], labels: Tensor) -> dict[str, int]:
    """Maxima by kind while a batch is sampled with all blocks resident; more steps than two of a block add nothing."""
    plan = plan_of(model.config, 2 * len(model.block_list))
    blocks = held(model.block_list)
    return forward_memory(model, lambda: generate(blocks, labels, plan, batch_size=len(labels), **request))


def _real_images(data: Images, to_images: Callable[[Tensor], Tensor]) -> Tensor:
    """The images of a split, uint8 (N, C, H, W); those of latents are decoded."""
    if isinstance(data, ImageSet):
        return data.images
    parts = track(range(0, len(data), 100), "decoding", console=Console(stderr=True), transient=True)
    return torch.cat([to_images(data.rows(torch.arange(k, min(k + 100, len(data))))) for k in parts])


def _rows(data: Images, which: Tensor) -> tuple[Tensor, Tensor]:
    """(what the model generates, labels) of some rows."""
    if isinstance(data, ImageSet):
        return to_float(data.images[which]), data.labels[which]
    return data.rows(which), data.labels[which]
