"""What the report of a run that generates images says; it is made from the files of the run folder alone."""

import shlex
from pathlib import Path
from typing import Any

from diffusionblocks.config import read_json
from diffusionblocks.errors import InputError
from diffusionblocks.report import figures
from diffusionblocks.report.comparison import features_words
from diffusionblocks.report.metrics import METRICS
from diffusionblocks.report.run_parts import (
    facts,
    loss_figure,
    made,
    memory_section,
    method_name,
    plan_levels,
    settings_of,
)
from diffusionblocks.report.sampled import Picture, denoising_of_run, noise_of, pictures_of

FID = METRICS["dit"]


def generation_page(run_dir: Path, split: str, prefix: str = "") -> dict[str, Any]:
    """Everything the template needs of a run that has been evaluated on the split.

    Args:
        run_dir: the run folder, with eval-SPLIT.json.
        split: the split that the samples were held against.
        prefix: goes before the ids of its sections and figures, where a page has more than this run.

    Raises:
        InputError: a file that cannot be read.
    """
    settings, result = settings_of(run_dir), read_json(run_dir / f"eval-{split}.json")
    if FID.name not in result:
        raise InputError("run", str(run_dir), f"a {FID.label} on the {split} split", "evaluate it with --features")
    noise, score = noise_of(settings), f"{FID.label} {result['fid']:.{FID.digits}f}"
    is_cut, levels = noise.num_blocks > 1, plan_levels(result["plan"])
    law_words = (
        "Each block trains alone inside its own interval of noise levels: the thick bar, widened by the overlap to the "
        "thin one."
        if is_cut
        else "The network trains over the whole range."
    )
    return {
        "prefix": prefix,
        "title": f"{settings['recipe']}: {method_name(settings)}",
        "facts": facts(settings, result, split),
        "headline": [f"{score} of {_judged(result)}, one training seed; lower is better.", *features_words(result)],
        "tiles": _tiles(result),
        "of_blocks": is_cut,
        "law": figures.noise_law(f"{prefix}law", noise, levels, "σ"),
        "law_words": f"{law_words} Triangles mark the {len(levels)} levels at which sampling runs.",
        "losses": loss_figure(run_dir, f"{prefix}loss", "weighted"),
        "by_level": denoising_of_run(f"{prefix}denoising", result, noise),
        "chain": None,
        "oracle": None,
        "split": split,
        "memory": memory_section(run_dir, f"{prefix}memory"),
        "grids": [_grid(variant, image, result) for variant, image in pictures_of(run_dir, split)],
        "tables": [],
        "passages": [],
        "samples": None,
        "settings": settings,
        "commands": [shlex.join(["dblocks", name, str(run_dir), "--split", split]) for name in ("eval", "report")],
        "made": made(run_dir),
    }


def _judged(result: dict[str, Any]) -> str:
    """What the score is of."""
    error = f"standard error {result['fid_se']:.{FID.digits}f} over " if len(result["sampling"]) > 1 else ""
    seeds = len(result["sampling"])
    return (
        f"{result['samples']:,} samples ({error}{seeds} sampling seed{'s' if seeds > 1 else ''}) against "
        f"{result['images']:,} {result['split']} images; {result['sampler']}, {result['num_sampling_steps']} steps, "
        f"guidance {result['guidance']:g}"
    )


def _tiles(result: dict[str, Any]) -> list[dict[str, str]]:
    """The few numbers to remember."""
    note = f"{result['samples']:,} samples"
    tiles = [{"label": FID.label, "value": f"{result['fid']:.{FID.digits}f}", "note": f"{note}; lower is better"}]
    for column in FID.columns:
        if column.source in result and not column.page_only:
            of = "mean over noise levels" if column.source == "denoising_error" else note
            tiles.append({"label": column.heading, "value": f"{result[column.source]:.{column.digits}f}", "note": of})
    return tiles


def _grid(variant: str, image: str, result: dict[str, Any]) -> Picture:
    if variant:
        return Picture(image, variant)
    return Picture(image, f"guidance {result['guidance']:g}: {FID.label} {result['fid']:.{FID.digits}f}")
