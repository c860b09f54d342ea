"""What each command of the command line does: settings from its arguments, one call of the library, lines to print.

Each function returns the exit status. torch and what needs it are imported inside, so that --help answers at once.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from diffusionblocks.arguments import device_of, guidance_of, number_of, refuse_foreign, steps_of, whole, whole_list
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
    only = None if arguments.block is None else whole("block", arguments.block, 0)

    from diffusionblocks.report.tables import memory_table, show
    from diffusionblocks.training.run import export_model, make_trainers
    from diffusionblocks.training.trainer import Interrupted

    trunk_run = None if arguments.trunk_run is None else Path(arguments.trunk_run)
    num_updates = 0
    for trainer in make_trainers(config, run_dir, only, device_of(arguments.device), trunk_dir=trunk_run):
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

    run_dir, seed, steps = Path(arguments.run), whole("seed", arguments.seed, 0), steps_of(arguments)
    chains = 1 if arguments.chains is None else whole("chains", arguments.chains, 1)
    count = 3 if arguments.sampling_seeds is None else whole("sampling_seeds", arguments.sampling_seeds, 1)
    guidance = guidance_of(arguments.guidance)
    family = load_config(run_dir).family
    refuse_foreign(arguments, EVAL_FLAGS, family)
    options: Any
    if family in ("causal-lm", "recurrent-lm"):
        from diffusionblocks.evaluation.causal import CausalOptions
        from diffusionblocks.evaluation.depth import DEPTHS

        options = CausalOptions(
            draws=4 if arguments.draws is None else whole("draws", arguments.draws, 1),
            seed=seed,
            samples=200 if arguments.samples is None else whole("samples", arguments.samples, 0),
            sampling_seeds=range(seed, seed + count),
            num_sampling_steps=steps,
            decoding=arguments.decoding,
            start=arguments.start,
            bridge=arguments.bridge,
            temperature=number_of("temperature", arguments.temperature),
            top_p=number_of("top_p", arguments.top_p),
            depths=DEPTHS if arguments.depths is None else whole_list("depths", arguments.depths),
            judge=arguments.judge,
            mauve=arguments.mauve,
        )
    elif family == "masked-lm":
        from diffusionblocks.evaluation.language import LanguageOptions

        options = LanguageOptions(
            draws=12 if arguments.draws is None else whole("draws", arguments.draws, 1),
            seed=seed,
            samples=200 if arguments.samples is None else whole("samples", arguments.samples, 0),
            sampling_seeds=range(seed, seed + count),
            num_sampling_steps=steps,
            sampler=arguments.sampler,
            temperature=number_of("temperature", arguments.temperature),
            judge=arguments.judge,
            mauve=arguments.mauve,
        )
    elif family == "dit":
        from diffusionblocks.evaluation.generation import GenerationOptions

        options = GenerationOptions(
            samples=1000 if arguments.samples is None else whole("samples", arguments.samples, 1),
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
    "causal-lm": (
        *("draws", "samples", "sampling_seeds", "decoding", "start", "bridge", "temperature", "top_p"),
        *("judge", "mauve"),
    ),
    "recurrent-lm": (
        *("draws", "samples", "sampling_seeds", "decoding", "start", "bridge", "temperature", "top_p"),
        *("depths", "judge", "mauve"),
    ),
}
"""Flags of `dblocks eval` that not every family has."""


def _score(run_dir: Path, split: str, options: Any, data_dir: str | None, device: str) -> int:
    from diffusionblocks.evaluation.score import score_run
    from diffusionblocks.report.tables import score_lines, show

    result = score_run(run_dir, split, options, data_dir, device_of(device))
    for line in score_lines(result):
        print(line) if isinstance(line, str) else show(line)
    return 0


def encode(arguments: argparse.Namespace) -> int:
    from diffusionblocks.data.encoding import encode_splits

    size = whole("image_size", arguments.image_size, 8)
    batch = whole("batch_size", arguments.batch_size, 1)
    for line in encode_splits(
        arguments.images, arguments.vae, Path(arguments.out), size, batch, device_of(arguments.device)
    ):
        print(line)
    return 0


def compare(arguments: argparse.Namespace) -> int:
    from diffusionblocks.compare import compare as make
    from diffusionblocks.comparison import Comparison
    from diffusionblocks.report.metrics import metric_of
    from diffusionblocks.report.statistics import group
    from diffusionblocks.report.tables import compare_table, show
    from diffusionblocks.report.verdicts import depth, leads, savings
    from diffusionblocks.training.trainer import Interrupted

    _needs_report_extra()
    given = {name: getattr(arguments, name) for name in _LISTS if getattr(arguments, name)}
    lists: Any = {name: () if text == "none" else tuple(text.split(",")) for name, text in given.items()}
    samples = {} if arguments.samples is None else {"samples": whole("samples", arguments.samples, 1)}
    comparison = Comparison(
        arguments.recipe,
        settings_of(arguments),
        None if arguments.config is None else Path(arguments.config),
        seeds=whole("seeds", arguments.seeds, 1),
        folds=whole("folds", arguments.folds, 1),
        variant_seeds=None if arguments.variant_seeds is None else whole("variant_seeds", arguments.variant_seeds, 1),
        trunk=arguments.trunk,
        split=arguments.split,
        sampling_seeds=whole("sampling_seeds", arguments.sampling_seeds, 1),
        judge=arguments.judge,
        mauve=arguments.mauve,
        **samples,
        **lists,
    )
    folder = Path(arguments.out or f"runs/compare-{arguments.recipe}")
    try:
        result = make(comparison, folder, device_of(arguments.device))
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

    top = whole("top", arguments.top, 1)
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
    print(f"report: {write_report(folder, split, data_dir, out, device_of(device))}")


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
