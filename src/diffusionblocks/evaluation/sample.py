"""`dblocks sample`: images of classes from a run or a saved model, with all its blocks in memory or one at a time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from diffusionblocks.block import plan_of
from diffusionblocks.config import read_json
from diffusionblocks.data.images import to_uint8
from diffusionblocks.data.latents import decode, load_vae
from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.generation import sample_classes
from diffusionblocks.evaluation.grid import picture, write_grid
from diffusionblocks.evaluation.opening import open_blocks
from diffusionblocks.families.dit import check_sampling, generate
from diffusionblocks.training.data import DataFacts
from diffusionblocks.training.run import CONFIG_FILE


@dataclass(frozen=True)
class SampleOptions:
    """What to generate; None: as the model's config says.

    Attributes:
        classes: "all", or numbers, ranges and names with commas between them.
        num: number of images, of the classes in turn.
        num_sampling_steps, sampler, guidance: how.
        seed: seed of the noise that images start from.
        batch_size: images at a time.
        resident: "all" blocks in memory, or "one" after the other.
        vae: folder of the autoencoder that decodes latents.
    """

    classes: str = "all"
    num: int = 64
    num_sampling_steps: int | None = None
    sampler: str | None = None
    guidance: float | Sequence[float] | None = None
    seed: int = 0
    batch_size: int = 64
    resident: str = "all"
    vae: str | None = None


def sample_run(folder: Path, options: SampleOptions, grid: Path, out: Path | None = None, device: str = "cpu") -> str:
    """Generate images and write them as one PNG, and each as its own if a folder is given.

    Args:
        folder: a run, or a saved model.
        options: what to generate.
        grid: PNG to write.
        out: folder for a PNG of each image, or None.
        device: where to compute.

    Returns:
        What was done, in a line.

    Raises:
        InputError: a run of another family or without a model, options that do not fit it, no place for the files.
    """
    if not grid.parent.is_dir():
        raise InputError("grid", str(grid), "a file in a folder that exists", "make the folder first")
    config, loaders = open_blocks(folder, "dit", options.resident)
    names = class_names(folder)
    is_run = (folder / CONFIG_FILE).exists()
    is_latent = is_run and read_json(folder / CONFIG_FILE)["dataset"] == "latents"
    # A saved model does not say what it was trained on, but no image has 4 channels.
    if options.vae is None and (is_latent or len(config.data_mean) not in (1, 3)):
        raise InputError("vae", None, "the autoencoder that the latents were encoded with", "set --vae DIR")
    vae = None if options.vae is None else load_vae(options.vae)
    plan = plan_of(config, options.num_sampling_steps)
    guidance = config.guidance if options.guidance is None else options.guidance
    sampler = options.sampler or config.sampler
    check_sampling(sampler, guidance, len(loaders))
    classes = parse_classes(options.classes, names)
    start = time.perf_counter()
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("sampling", total=options.num * len(plan.steps))
        images = generate(
            loaders,
            sample_classes(options.num, classes),
            plan,
            sampler=sampler,
            guidance=guidance,
            seed=options.seed,
            batch_size=options.batch_size,
            device=device,
            advance=lambda count: progress.advance(task, count),
        )
    seconds = time.perf_counter() - start
    pixels = to_uint8(images) if vae is None else decode(vae, images)
    write_grid(pixels, grid, len(classes) if 1 < len(classes) <= 20 else None)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(pixels):
            picture(image).save(out / f"{number:06d}-class-{classes[number % len(classes)]}.png")
    how = f"{sampler}, {len(plan.steps)} steps, guidance {guidance}, seed {options.seed}, resident: {options.resident}"
    return f"{options.num} images ({how}) in {seconds:.1f} s, {options.num / seconds:.1f} images/s: {grid}"


def class_names(folder: Path) -> tuple[str, ...]:
    """The names of the classes of a run; a saved model has no names but numbers."""
    if (folder / CONFIG_FILE).exists():
        return DataFacts.read(folder).classes
    count = read_json(folder / "block-0" / "config.json")["num_embeds_ada_norm"]
    return tuple(str(k) for k in range(count))


def parse_classes(text: str, names: Sequence[str]) -> list[int]:
    """Classes by number, range or name: "0-9", "3,7", "Trouser,Bag", "all".

    Raises:
        InputError: one that is not there.
    """
    if text == "all":
        return list(range(len(names)))
    found: list[int] = []
    for part in (piece.strip() for piece in text.split(",")):
        first, dash, last = part.partition("-")
        if part in names:
            found.append(names.index(part))
        elif part.isdigit() and int(part) < len(names):
            found.append(int(part))
        elif dash and first.isdigit() and last.isdigit() and int(first) <= int(last) < len(names):
            found += range(int(first), int(last) + 1)
        else:
            known = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise InputError(
                "classes", part, f"numbers in 0..{len(names) - 1}, a range such as 0-3, or names ({known})"
            )
    return found
