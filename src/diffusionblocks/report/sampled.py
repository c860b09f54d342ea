"""What generating runs leave beside their scores: pictures of samples, and the error of the denoiser by noise level."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffusionblocks.block import edges_of
from diffusionblocks.config import BlockwiseConfig, config_class, read_json, validate
from diffusionblocks.report import figures
from diffusionblocks.report.comparison import Stored
from diffusionblocks.report.groups import name_of
from diffusionblocks.report.panel import Panel
from diffusionblocks.report.run_parts import settings_of
from diffusionblocks.report.statistics import Key, Row


@dataclass(frozen=True)
class Picture:
    """A PNG as a data URI, with what stands below it."""

    image: str
    caption: str


@dataclass(frozen=True)
class FirstRun:
    """The run folder of the first seed of a group."""

    key: Key
    row: Row
    run_dir: Path
    result: dict[str, Any]


def noise_of(settings: dict[str, Any]) -> BlockwiseConfig:
    """The part of a run's settings that says where noise is; a control has the whole range in one block."""
    of_family = config_class(settings["family"])
    known = {name: settings[name] for name in of_family.model_fields if name in settings}
    if settings["method"] != "blocks":
        known |= {"num_blocks": 1, "layer_split": None}
    return validate(of_family, known)


def first_runs(stored: Stored, folder: Path) -> list[FirstRun]:
    """The run of the first seed of every group whose folder is there.

    Rows do not name their folders, so a folder belongs to the row of its method, its seed and its very score.
    """
    name, found = stored.metric.name, []
    scored = list(_scored(folder, stored.split))
    for key, rows in stored.groups.items():
        row = min(rows, key=lambda row: (row["seed"], row.get("fold", 0)))
        wanted = key.method.removesuffix("+trunk"), row["seed"], row["metrics"].get(name)
        for run_dir, method, seed, result in scored:
            if wanted == (method, seed, result.get(name, "none")):
                found.append(FirstRun(key, row, run_dir, result))
                break
    return found


def _scored(folder: Path, split: str) -> Iterator[tuple[Path, str, int, dict[str, Any]]]:
    """(run folder, method, seed, evaluation) of every run; the first member of an ensemble is a shallow network."""
    for path in sorted((folder / "runs").glob(f"*/eval-{split}.json")):
        settings, result = settings_of(path.parent), read_json(path)
        yield path.parent, settings["method"], settings["seed"], result
        if result.get("members"):
            yield path.parent, "shallow", settings["seed"], result["members"][0]


def grids(stored: Stored, runs: list[FirstRun]) -> list[Picture]:
    """Pictures of the samples of every group's first seed, each with the score of what it shows."""
    found, metric = [], stored.metric
    for run in runs:
        for variant, image in pictures_of(run.run_dir, stored.split):
            key = run.key._replace(variant=", ".join(filter(None, (run.key.variant, variant))))
            same = [row for row in stored.groups.get(key, ()) if row["seed"] == run.row["seed"]]
            score = (
                f": {metric.label} {metric.scale * same[0]['metrics'][metric.name]:.{metric.digits}f}" if same else ""
            )
            name = f"{name_of(key)}; {key.updates:,} updates, seed {run.row['seed']}"
            found.append(Picture(image, f"{name}{score}"))
    return found


def pictures_of(run_dir: Path, split: str) -> Iterator[tuple[str, str]]:
    """eval-SPLIT.png and eval-SPLIT-VARIANT.png as data URIs, each with its variant in words ("guidance 2")."""
    stem = f"eval-{split}"
    for path in sorted(run_dir.glob(f"{stem}*.png"), key=lambda path: path.stem):
        yield path.stem.removeprefix(stem).replace("-", " ").strip(), png_uri(path.read_bytes())


def png_uri(data: bytes) -> str:
    """A PNG inside a data URI."""
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")


def denoising_of_methods(name: str, runs: list[FirstRun]) -> list[Panel]:
    """Error over noise level, a line per method at equal layer evaluations, with the edges of the blocks."""
    curves, edges = {}, tuple[float, ...]()
    for run in plain(runs, "denoising"):
        curves[label_of(run.key)] = _curve(run.result["denoising"])
        if run.key.method == "blocks" and not edges:
            edges = edges_of(noise_of(settings_of(run.run_dir)))
    if not curves:
        return []
    caption = "On the split of the table, weighted as the loss, first seed. Dotted: the edges of the blocks."
    return [Panel("Denoising error by noise level", figures.by_level(name, curves, edges), caption)]


def denoising_of_run(name: str, result: dict[str, Any], config: BlockwiseConfig) -> Panel | None:
    """Error over noise level, a line per block."""
    rows, is_cut = result.get("denoising", []), config.num_blocks > 1
    if not rows:
        return None
    curves = {label: _curve(own) for label, own in by_block(rows, is_cut).items()}
    of_blocks = ", each block at its own noise levels; dotted: edges of the blocks" if is_cut else ""
    caption = f"On the {result['split']} split, weighted as the loss{of_blocks}."
    return Panel("Denoising error", figures.by_level(name, curves, edges_of(config)), caption)


def plain(runs: list[FirstRun], curve: str) -> list[FirstRun]:
    """The runs at equal layer evaluations, without a variant, whose evaluation has this curve."""
    return [
        run for run in runs if not run.key.variant and run.key.budget == "layer-evaluations" and curve in run.result
    ]


def label_of(key: Key) -> str:
    """A group in the legend of a figure."""
    return f"{name_of(key)}; {key.updates:,} updates"


def by_block(rows: list[dict[str, Any]], is_cut: bool) -> dict[str, list[dict[str, Any]]]:
    """Rows by their block, or all of them as those of the network."""
    if not is_cut:
        return {"network": rows}
    numbers = sorted({row["block"] for row in rows})
    return {f"block {k}": [row for row in rows if row["block"] == k] for k in numbers}


def _curve(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    return sorted((row["sigma"], row["error"]) for row in rows)
