"""What each command of the command line does: settings from its arguments, one call of the library, lines to print.

Each function returns the exit status. torch and what needs it are imported inside, so that --help answers at once.
"""

import argparse
import math
import shlex
import sys
from pathlib import Path
from typing import Any

from diffusionblocks.errors import InputError
from diffusionblocks.recipes import RECIPES, resolve


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {k.removeprefix("set_"): v for k, v in vars(arguments).items() if k.startswith("set_") and v is not None}
    for name in ("layer_split", "data_mean", "data_std"):
        if name in given:
            given[name] = given[name].split(",")
    return {name: None if value in ("none", "None") and name != "weight" else value for name, value in given.items()}


def train(arguments: argparse.Namespace) -> int:
    config = resolve(
        arguments.recipe, None if arguments.config is None else Path(arguments.config), settings_of(arguments)
    )
    suffix = "" if config.method == "blocks" else f"-{config.method}"
    run_dir = Path(arguments.run or f"runs/{config.recipe}{suffix}")
    only = None if arguments.block is None else _whole("block", arguments.block, 0)

    from diffusionblocks.report.tables import memory_table, show
    from diffusionblocks.training.run import export_model, make_trainers
    from diffusionblocks.training.trainer import Interrupted

    trunk_run = None if arguments.trunk_run is None else Path(arguments.trunk_run)
    num_updates = 0
    for trainer in make_trainers(config, run_dir, only, _device(arguments.device), trunk_dir=trunk_run):
        print(f"{'trunk' if trainer.is_trunk else config.method}: {trainer.plan()}")
        try:
            memory = trainer.train()
        except Interrupted:
            print(f"dblocks: stopped and saved in {run_dir}; the same command goes on", file=sys.stderr)
            return 130
        if memory:
            show(memory_table(memory))
        num_updates = trainer.num_updates
    exported = export_model(run_dir, config, num_updates)
    print(f"model: {exported}" if exported else f"{run_dir}: blocks still to be trained; no model is written yet")
    print(f"next: dblocks eval {run_dir}")
    return 0


def eval(arguments: argparse.Namespace) -> int:
    from diffusionblocks.training.run import load_config

    run_dir, seed, steps = Path(arguments.run), _whole("seed", arguments.seed, 0), _steps(arguments)
    chains = 1 if arguments.chains is None else _whole("chains", arguments.chains, 1)
    count = 3 if arguments.sampling_seeds is None else _whole("sampling_seeds", arguments.sampling_seeds, 1)
    guidance = _guidance(arguments.guidance)
    family = load_config(run_dir).family
    _refuse_foreign(arguments, EVAL_FLAGS, family)
    options: Any
    if family == "masked-lm":
        from diffusionblocks.evaluation.language import LanguageOptions

        options = LanguageOptions(
            draws=12 if arguments.draws is None else _whole("draws", arguments.draws, 1),
            seed=seed,
            samples=200 if arguments.samples is None else _whole("samples", arguments.samples, 0),
            sampling_seeds=range(seed, seed + count),
            num_sampling_steps=steps,
            sampler=arguments.sampler,
            temperature=_temperature(arguments.temperature),
            judge=arguments.judge,
            mauve=arguments.mauve,
        )
    elif family == "dit":
        from diffusionblocks.evaluation.generation import GenerationOptions

        options = GenerationOptions(
            samples=1000 if arguments.samples is None else _whole("samples", arguments.samples, 1),
            seeds=range(seed, seed + count),
            num_sampling_steps=steps,
            sampler=arguments.sampler,
            guidance=guidance,
            features=arguments.features,
            vae=arguments.vae,
        )
    else:
        from diffusionblocks.evaluation.classification import EvalOptions

        options = EvalOptions(
            start=arguments.start,
            num_sampling_steps=steps,
            chains=chains,
            decoding=arguments.decoding,
            seed=seed,
        )
    return _score(run_dir, arguments.split, options, arguments.data_dir, arguments.device)


EVAL_FLAGS = {
    "vit": ("start", "chains", "decoding"),
    "dit": ("samples", "sampling_seeds", "sampler", "guidance", "features", "vae"),
    "masked-lm": ("draws", "samples", "sampling_seeds", "sampler", "temperature", "judge", "mauve"),
}
"""Flags of `dblocks eval` that not every family has."""

SAMPLE_FLAGS = {
    "dit": ("classes", "sampler", "guidance", "vae", "grid"),
    "masked-lm": ("prompt", "infill", "blank", "sampler", "temperature"),
}
"""Flags of `dblocks sample` that not every family has."""


def _refuse_foreign(arguments: argparse.Namespace, flags: dict[str, tuple[str, ...]], family: str) -> None:
    """Refuse a flag that is given and that the family does not have."""
    for other, names in flags.items():
        for name in names:
            value = getattr(arguments, name)
            if value is not None and name not in flags.get(family, ()):
                raise InputError(name, value, f"no such flag for a run of the family {family}", f"{other} has it")


def _score(run_dir: Path, split: str, options: Any, data_dir: str | None, device: str) -> int:
    from diffusionblocks.evaluation.score import score_run
    from diffusionblocks.report.tables import score_lines, show

    result = score_run(run_dir, split, options, data_dir, _device(device))
    for line in score_lines(result):
        print(line) if isinstance(line, str) else show(line)
    return 0


def sample(arguments: argparse.Namespace) -> int:
    from diffusionblocks.evaluation.opening import family_in

    family = family_in(Path(arguments.run))
    _refuse_foreign(arguments, SAMPLE_FLAGS, family)
    return _sample_texts(arguments) if family == "masked-lm" else _sample_images(arguments)


def _sample_texts(arguments: argparse.Namespace) -> int:
    from diffusionblocks.evaluation.sample_text import TextOptions, sample_texts

    options = TextOptions(
        prompt=arguments.prompt or "",
        infill=arguments.infill,
        blank="_" if arguments.blank is None else arguments.blank,
        num=4 if arguments.num is None else _whole("num", arguments.num, 1),
        num_sampling_steps=_steps(arguments),
        sampler=arguments.sampler,
        temperature=_temperature(arguments.temperature),
        seed=_whole("seed", arguments.seed, 0),
        batch_size=_whole("batch_size", arguments.batch_size, 1),
        resident=arguments.resident,
    )
    out = None if arguments.out is None else Path(arguments.out)
    texts, what = sample_texts(Path(arguments.run), options, out, _device(arguments.device))
    for number, text in enumerate(texts):
        print(f"--- {number}\n{text}")
    print(f"---\n{what}" + ("" if out is None else f": {out}"))
    return 0


def _sample_images(arguments: argparse.Namespace) -> int:
    from diffusionblocks.evaluation.sample import SampleOptions, sample_run

    options = SampleOptions(
        classes=arguments.classes or "all",
        num=64 if arguments.num is None else _whole("num", arguments.num, 1),
        num_sampling_steps=_steps(arguments),
        sampler=arguments.sampler,
        guidance=_guidance(arguments.guidance),
        seed=_whole("seed", arguments.seed, 0),
        batch_size=_whole("batch_size", arguments.batch_size, 1),
        resident=arguments.resident,
        vae=arguments.vae,
    )
    grid, out = Path(arguments.grid or "samples.png"), None if arguments.out is None else Path(arguments.out)
    print(sample_run(Path(arguments.run), options, grid, out, _device(arguments.device)))
    return 0


def encode(arguments: argparse.Namespace) -> int:
    from diffusionblocks.data.encoding import encode_splits

    size = _whole("image_size", arguments.image_size, 8)
    batch = _whole("batch_size", arguments.batch_size, 1)
    for line in encode_splits(
        arguments.images, arguments.vae, Path(arguments.out), size, batch, _device(arguments.device)
    ):
        print(line)
    return 0


def _steps(arguments: argparse.Namespace) -> int | None:
    steps = arguments.num_sampling_steps
    return None if steps is None else _whole("num_sampling_steps", steps, 1)


def _guidance(text: str | None) -> float | tuple[float, ...] | None:
    """One scale, or one for each block: 2.0, or 1,2,1."""
    if text is None:
        return None
    try:
        scales = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError("guidance", text, "a number, or one for each block such as 1,2,1") from None
    if not all(math.isfinite(scale) and scale >= 0 for scale in scales):
        raise InputError("guidance", text, "finite numbers of at least 0")
    return scales[0] if len(scales) == 1 else scales


def _temperature(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError("temperature", text, "a number above 0") from None


def compare(arguments: argparse.Namespace) -> int:
    from diffusionblocks.compare import compare as make
    from diffusionblocks.comparison import Comparison
    from diffusionblocks.report.metrics import metric_of
    from diffusionblocks.report.statistics import group
    from diffusionblocks.report.tables import compare_table, show
    from diffusionblocks.report.verdicts import depth, leads, savings
    from diffusionblocks.training.trainer import Interrupted

    _needs_report_extra()
    lists: Any = {name: tuple(getattr(arguments, name).split(",")) for name in _LISTS if getattr(arguments, name)}
    samples = {} if arguments.samples is None else {"samples": _whole("samples", arguments.samples, 1)}
    comparison = Comparison(
        arguments.recipe,
        settings_of(arguments),
        None if arguments.config is None else Path(arguments.config),
        seeds=_whole("seeds", arguments.seeds, 1),
        folds=_whole("folds", arguments.folds, 1),
        variant_seeds=None if arguments.variant_seeds is None else _whole("variant_seeds", arguments.variant_seeds, 1),
        trunk=arguments.trunk,
        split=arguments.split,
        sampling_seeds=_whole("sampling_seeds", arguments.sampling_seeds, 1),
        judge=arguments.judge,
        mauve=arguments.mauve,
        **samples,
        **lists,
    )
    folder = Path(arguments.out or f"runs/compare-{arguments.recipe}")
    try:
        result = make(comparison, folder, _device(arguments.device))
    except Interrupted:
        print(f"dblocks: stopped and saved in {folder}; the same command goes on", file=sys.stderr)
        return 130
    groups, metric = group(result["rows"]), metric_of(result)
    print("\n".join([*leads(groups, metric), depth(groups, metric), *savings(groups)]))
    show(compare_table(groups, metric))
    print(f"written: {folder / 'compare.json'}")
    _write_report(folder, comparison.split, None, None, arguments.device)
    return 0


_LISTS = ("methods", "budgets", "presets", "variants")


def predict(arguments: argparse.Namespace) -> int:
    from diffusionblocks.evaluation.predict import load_any
    from diffusionblocks.evaluation.predict import predict as answers

    top = _whole("top", arguments.top, 1)
    model = load_any(Path(arguments.run))
    for path, ranked in answers(model, arguments.images, arguments.invert, top):
        print(f"{path}: " + ", ".join(f"{name} {100 * p:.1f}%" for name, p in ranked))
    return 0


def _needs_report_extra() -> None:
    """Refuse at once what would end without a report."""
    try:
        import diffusionblocks.report.page  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "markupsafe", "matplotlib"):
            raise
        install = "pip install 'diffusionblocks[report]'"
        raise InputError(
            "report", error.name, "a package that is installed", f"it is in the extra: {install}"
        ) from None


def report(arguments: argparse.Namespace) -> int:
    _needs_report_extra()
    out = None if arguments.out is None else Path(arguments.out)
    _write_report(Path(arguments.folder), arguments.split, arguments.data_dir, out, arguments.device)
    return 0


def _write_report(folder: Path, split: str | None, data_dir: str | None, out: Path | None, device: str) -> None:
    from diffusionblocks.report.page import read_images, runs_of, write_report

    run_dirs, split = runs_of(folder, split)
    for run_dir in run_dirs:
        if (run_dir / f"eval-{split}.json").exists():
            continue
        read_images(run_dir, split, data_dir)
        command = ["eval", str(run_dir), "--split", split, "--device", device]
        command += [] if data_dir is None else ["--data-dir", data_dir]
        print(f"{run_dir} has no eval-{split}.json; running: dblocks {shlex.join(command)}")
        _score(run_dir, split, None, data_dir, device)
    print(f"report: {write_report(folder, split, data_dir, out, _device(device))}")


def plan(arguments: argparse.Namespace) -> int:
    flags = settings_of(arguments)
    config = resolve(arguments.recipe, None if arguments.config is None else Path(arguments.config), flags)

    from diffusionblocks.planner import plan as predicted
    from diffusionblocks.planner import write_plan
    from diffusionblocks.report.tables import plan_lines, plan_table, show

    # The other methods are rows of the table, whatever the recipe trains.
    rows = predicted(config, [config.num_blocks] if "num_blocks" in flags else None)
    show(plan_table(rows))
    for line in plan_lines(rows, config):
        print(line)
    if arguments.json is not None:
        print(f"written: {write_plan(Path(arguments.json), rows, config)}")
    return 0


def recipes(arguments: argparse.Namespace) -> int:
    for name, recipe in RECIPES.items():
        print(f"{name:18} {(recipe.__doc__ or '').splitlines()[0]}")
    return 0


def _whole(setting: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or value < least:
        raise InputError(setting, text, f"a whole number of at least {least}")
    return value


def _device(name: str) -> str:
    """The device to use.

    Raises:
        InputError: not a device, or one that this machine does not have.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError("device", name, "a device of this machine", str(error).splitlines()[0]) from None
    return name
