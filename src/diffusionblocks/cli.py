"""The command line `dblocks`: parses and prints; what it runs lives elsewhere.

Exit status 0: done; 2: bad input, in one line; 1: training could not go on; 130: stopped by the user.
"""

import argparse
import difflib
import shlex
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel

from diffusionblocks.errors import InputError, TrainingError
from diffusionblocks.recipes import RECIPES, RunConfig, resolve


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError("arguments", message, "those of the command", f"see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status."""
    try:
        arguments, unknown = _parser().parse_known_args(argv)
        if unknown:
            raise InputError("argument", unknown[0], "an argument of this command", _did_you_mean(unknown[0]))
        return arguments.run_command(arguments) or 0
    except InputError as error:
        print(f"dblocks: {error}", file=sys.stderr)
        return 2
    except TrainingError as error:
        print(f"dblocks: training stopped: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"dblocks: {error}; checkpoints that were whole before still are", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dblocks: stopped", file=sys.stderr)
        return 130


def _parser() -> _Parser:
    parser = _Parser(prog="dblocks", description="Train residual networks block by block, each block alone.")
    commands = parser.add_subparsers(title="commands", required=True, parser_class=_Parser)

    train = commands.add_parser("train", help="train a recipe, or go on with it", allow_abbrev=False)
    train.add_argument("recipe", help=f"one of {', '.join(RECIPES)}")
    train.add_argument("--run", metavar="DIR", help="run folder (default runs/RECIPE; a control adds its name)")
    train.add_argument("--config", metavar="FILE", help="JSON object of settings; flags go before it")
    train.add_argument("--block", metavar="K", help="train this block alone")
    train.add_argument("--from", metavar="RUN", dest="trunk_run", help="trained trunk that the blocks start from")
    train.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default auto)")
    _add_settings(train, RunConfig)
    train.set_defaults(run_command=_train)

    evaluate = commands.add_parser("eval", help="score a run on every sample of a split", allow_abbrev=False)
    evaluate.add_argument("run", metavar="RUN", help="run folder")
    evaluate.add_argument("--split", choices=["test", "validation", "train"], default="test")
    evaluate.add_argument("--start", choices=["zero", "noise"], help="start of the chain (default: the run's)")
    evaluate.add_argument("--num-sampling-steps", metavar="N", help="steps of the plan (default: the run's)")
    evaluate.add_argument("--chains", metavar="K", default="1", help="with --start noise: chains to average")
    evaluate.add_argument("--decoding", choices=["chain", "average"], help="which answer counts (default: the run's)")
    evaluate.add_argument("--data-dir", metavar="DIR", help="where the data are now (default: the run's)")
    evaluate.add_argument("--seed", default="0", help="seed of the noise")
    evaluate.add_argument("--device", default="auto")
    evaluate.set_defaults(run_command=_eval)

    compare = commands.add_parser("compare", help="train and score blocks and all controls", allow_abbrev=False)
    compare.add_argument("recipe", help=f"one of {', '.join(RECIPES)}")
    compare.add_argument("--out", metavar="DIR", help="folder of the comparison (default runs/compare-RECIPE)")
    compare.add_argument("--config", metavar="FILE", help="JSON object of settings; flags go before it")
    compare.add_argument("--seeds", metavar="N", default="3", help="seeds 0..N-1 (default 3)")
    compare.add_argument("--folds", metavar="N", default="1", help="digits: folds, each with every seed (default 1)")
    for name, what in (("methods", "methods"), ("budgets", "budgets"), ("presets", "presets of the blocks")):
        compare.add_argument(f"--{name}", metavar="A,B", help=f"these {what} alone (default: all)")
    compare.add_argument(
        "--trunk", metavar="X", default="0.75", help="share of the trunk of blocks+trunk (default .75)"
    )
    compare.add_argument("--split", choices=["test", "validation"], default="test")
    compare.add_argument("--device", default="auto")
    _add_settings(compare, RunConfig, without=("preset", "method", "budget", "trunk", "seed", "fold"))
    compare.set_defaults(run_command=_compare)

    predict = commands.add_parser("predict", help="classify image files with a run", allow_abbrev=False)
    predict.add_argument("run", metavar="RUN", help="run folder, or a saved model")
    predict.add_argument("images", metavar="IMAGE", nargs="+", help="image files")
    predict.add_argument("--invert", action="store_true", help="invert brightness (dark ink on white paper)")
    predict.add_argument("--top", metavar="K", default="3", help="classes to show")
    predict.set_defaults(run_command=_predict)

    report = commands.add_parser("report", help="write an HTML page of a run or a comparison", allow_abbrev=False)
    report.add_argument("folder", metavar="RUN|DIR", help="run folder, or folder of dblocks compare")
    report.add_argument("--split", choices=["test", "validation", "train"], help="default: test, or what was compared")
    report.add_argument("--data-dir", metavar="DIR", help="where the data are now (default: the run's)")
    report.add_argument("--out", metavar="FILE", help="HTML file to write (default: report.html in the folder)")
    report.add_argument("--device", default="auto")
    report.set_defaults(run_command=_report)

    plan = commands.add_parser("plan", help="predict the memory of every method before training", allow_abbrev=False)
    plan.add_argument("recipe", help=f"one of {', '.join(RECIPES)}")
    plan.add_argument("--config", metavar="FILE", help="JSON object of settings; flags go before it")
    plan.add_argument("--json", metavar="FILE", help="write the bytes there too")
    _add_settings(plan, RunConfig)
    plan.set_defaults(run_command=_plan)

    recipes = commands.add_parser("recipes", help="list the recipes")
    recipes.set_defaults(run_command=_recipes)
    return parser


def _did_you_mean(flag: str) -> str:
    known = [f"--{name.replace('_', '-')}" for name in RunConfig.model_fields]
    close = difflib.get_close_matches(flag, known, n=2)
    return f"did you mean {' or '.join(close)}?" if close else "see dblocks COMMAND --help"


def _add_settings(parser: argparse.ArgumentParser, model: type[BaseModel], without: Sequence[str] = ()) -> None:
    """A flag for every setting; values stay text here and are checked by the model, like those of a file."""
    group = parser.add_argument_group("settings (default: the recipe's)")
    for name, field in model.model_fields.items():
        if name in ("recipe", "family", "format_version", *without):
            continue
        kind = typing.get_args(field.annotation)
        values = f" ({', '.join(map(str, kind))})" if typing.get_origin(field.annotation) is typing.Literal else ""
        help_text = f"{field.description}{values}".replace("%", "%%")
        group.add_argument("--" + name.replace("_", "-"), metavar="X", default=None, dest=f"set_{name}", help=help_text)


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    given = {k.removeprefix("set_"): v for k, v in vars(arguments).items() if k.startswith("set_") and v is not None}
    if "layer_split" in given:
        given["layer_split"] = given["layer_split"].split(",")
    return {name: None if value in ("none", "None") and name != "weight" else value for name, value in given.items()}


def _train(arguments: argparse.Namespace) -> int:
    config = resolve(
        arguments.recipe, None if arguments.config is None else Path(arguments.config), _settings(arguments)
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


def _eval(arguments: argparse.Namespace) -> int:
    from diffusionblocks.evaluation.classification import EvalOptions
    from diffusionblocks.evaluation.score import score_run
    from diffusionblocks.report.tables import block_table, forward_memory_line, show

    steps = arguments.num_sampling_steps
    options = EvalOptions(
        start=arguments.start,
        num_sampling_steps=None if steps is None else _whole("num_sampling_steps", steps, 1),
        chains=_whole("chains", arguments.chains, 1),
        decoding=arguments.decoding,
        seed=_whole("seed", arguments.seed, 0),
    )
    run_dir = Path(arguments.run)
    result = score_run(run_dir, arguments.split, options, arguments.data_dir, _device(arguments.device))
    if "blocks" in result:
        show(block_table(result))
        print(f"plan: {result['plan']}; start: {result['start']}; chains: {result['chains']}")
        print(f"z-free average of the blocks: {100 * result['average']['accuracy']:.2f}%")
    print(forward_memory_line(result["memory_bytes"]))
    what = f"{result['method']}, {arguments.split} split, {result['images']} images"
    print(f"{what}: accuracy {100 * result['accuracy']:.2f}%")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from diffusionblocks.compare import Comparison, compare
    from diffusionblocks.report.statistics import group
    from diffusionblocks.report.tables import compare_table, show
    from diffusionblocks.report.verdicts import depth, leads, savings
    from diffusionblocks.training.trainer import Interrupted

    _needs_report_extra()
    lists = {name: tuple(getattr(arguments, name).split(",")) for name in _LISTS if getattr(arguments, name)}
    comparison = Comparison(
        arguments.recipe,
        _settings(arguments),
        None if arguments.config is None else Path(arguments.config),
        seeds=_whole("seeds", arguments.seeds, 1),
        folds=_whole("folds", arguments.folds, 1),
        trunk=arguments.trunk,
        split=arguments.split,
        **lists,
    )
    folder = Path(arguments.out or f"runs/compare-{arguments.recipe}")
    try:
        result = compare(comparison, folder, _device(arguments.device))
    except Interrupted:
        print(f"dblocks: stopped and saved in {folder}; the same command goes on", file=sys.stderr)
        return 130
    groups = group(result["rows"])
    print("\n".join([*leads(groups), depth(groups), *savings(groups)]))
    show(compare_table(groups))
    print(f"written: {folder / 'compare.json'}")
    return _report(_parser().parse_args(["report", str(folder), "--split", comparison.split]))


_LISTS = ("methods", "budgets", "presets")


def _predict(arguments: argparse.Namespace) -> int:
    from diffusionblocks.evaluation.predict import load_any, predict

    top = _whole("top", arguments.top, 1)
    model = load_any(Path(arguments.run))
    for path, ranked in predict(model, arguments.images, arguments.invert, top):
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


def _report(arguments: argparse.Namespace) -> int:
    _needs_report_extra()
    from diffusionblocks.report.page import read_images, runs_of, write_report

    folder, data_dir = Path(arguments.folder), arguments.data_dir
    run_dirs, split = runs_of(folder, arguments.split)
    for run_dir in run_dirs:
        if (run_dir / f"eval-{split}.json").exists():
            continue
        read_images(run_dir, split, data_dir)
        score = ["eval", str(run_dir), "--split", split, "--device", arguments.device]
        score += [] if data_dir is None else ["--data-dir", data_dir]
        print(f"{run_dir} has no eval-{split}.json; running: dblocks {shlex.join(score)}")
        _eval(_parser().parse_args(score))
    out = None if arguments.out is None else Path(arguments.out)
    print(f"report: {write_report(folder, split, data_dir, out, _device(arguments.device))}")
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    flags = _settings(arguments)
    config = resolve(arguments.recipe, None if arguments.config is None else Path(arguments.config), flags)

    from diffusionblocks.planner import plan, write_plan
    from diffusionblocks.report.tables import plan_lines, plan_table, show

    # The other methods are rows of the table, whatever the recipe trains.
    rows = plan(config, [config.num_blocks] if "num_blocks" in flags else None)
    show(plan_table(rows))
    for line in plan_lines(rows, config):
        print(line)
    if arguments.json is not None:
        print(f"written: {write_plan(Path(arguments.json), rows, config)}")
    return 0


def _recipes(arguments: argparse.Namespace) -> int:
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


if __name__ == "__main__":
    sys.exit(main())
