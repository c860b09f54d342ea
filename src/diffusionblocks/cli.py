"""The command line `dblocks`: its commands, flags and exit statuses; `commands` runs them.

Exit status 0: done; 2: bad input, in one line; 1: training could not go on; 130: stopped by the user.
"""

import argparse
import difflib
import sys
import typing
from collections.abc import Sequence
from typing import Any, NoReturn

from diffusionblocks import commands, sampling_commands
from diffusionblocks.errors import InputError, TrainingError
from diffusionblocks.recipes import RECIPES
from diffusionblocks.run_config import RUN_CONFIGS

BRIDGES = ["sampled", "soft", "top-k", "hard"]


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
    subcommands = parser.add_subparsers(title="commands", required=True, parser_class=_Parser)

    train = subcommands.add_parser("train", help="train a recipe, or go on with it", allow_abbrev=False)
    train.add_argument("recipe", help=f"one of {', '.join(RECIPES)}")
    train.add_argument("--run", metavar="DIR", help="run folder (default runs/RECIPE; a control adds its name)")
    train.add_argument("--config", metavar="FILE", help="JSON object of settings; flags go before it")
    train.add_argument("--block", metavar="K", help="train this block alone")
    train.add_argument("--from", metavar="RUN", dest="trunk_run", help="trained trunk that the blocks start from")
    train.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default auto)")
    _add_settings(train)
    train.set_defaults(run_command=commands.train)

    # Next-token models: causal-lm and recurrent-lm.
    evaluate = subcommands.add_parser("eval", help="score a run on every sample of a split", allow_abbrev=False)
    evaluate.add_argument("run", metavar="RUN", help="run folder")
    evaluate.add_argument("--split", choices=["test", "validation", "train"], default="test")
    evaluate.add_argument("--start", choices=["zero", "noise"], help="vit, next-token: start of the chain")
    evaluate.add_argument("--num-sampling-steps", metavar="N", help="steps of the plan (default: the run's)")
    evaluate.add_argument("--chains", metavar="K", help="vit, with --start noise: chains to average (default 1)")
    evaluate.add_argument("--decoding", choices=["chain", "average"], help="vit, next-token: which answer counts")
    evaluate.add_argument("--bridge", choices=BRIDGES, help="next-token: from a step's answer to the next z")
    evaluate.add_argument(
        "--top-p", metavar="P", help="next-token: tokens are drawn from the most likely of this share"
    )
    evaluate.add_argument(
        "--depths", metavar="K,L", help="recurrent-lm: passes of its curve (default 1,2,4,8,16,32,64; or none)"
    )
    evaluate.add_argument(
        "--draws",
        metavar="N",
        help="masked-lm: masks of each window for the bound (default 12); next-token: noisy starts of block 0 (4)",
    )
    evaluate.add_argument(
        "--samples", metavar="N", help="dit: images of each seed (default 1000); language: texts (200; 0: none)"
    )
    evaluate.add_argument(
        "--sampling-seeds", metavar="N", help="dit, language: seeds of the samples, from --seed on (default 3)"
    )
    _add_sampling(evaluate)
    _add_judges(evaluate)
    evaluate.add_argument(
        "--features",
        metavar="DIR",
        help="dit: what FID is measured with: inception, none, or the folder of a classifier, which is trained on the "
        "training split if it is not there (default: features-DATASET beside the run)",
    )
    evaluate.add_argument("--data-dir", "--data", metavar="DIR", help="where the data are now (default: the run's)")
    evaluate.add_argument("--seed", default="0", help="seed of the noise")
    evaluate.add_argument("--device", default="auto")
    evaluate.set_defaults(run_command=commands.eval)

    sample = subcommands.add_parser("sample", help="generate images of classes, or texts", allow_abbrev=False)
    sample.add_argument("run", metavar="RUN", help="run folder, or a saved model")
    sample.add_argument("--classes", metavar="A,B", help="dit: classes by number or name; 0-9 (default all)")
    sample.add_argument("--prompt", metavar="TEXT", help="masked-lm: how every text begins")
    sample.add_argument("--infill", metavar="TEXT", help="masked-lm: a text with blanks, one for each missing token")
    sample.add_argument("--blank", metavar="X", help="masked-lm: what marks a blank (default _)")
    sample.add_argument(
        "--num", metavar="N", help="dit: number of images, classes in turn (default 64); masked-lm: of texts (4)"
    )
    sample.add_argument("--num-sampling-steps", metavar="N", help="steps of the plan (default: the run's)")
    _add_sampling(sample)
    sample.add_argument("--seed", default="0", help="seed of the noise that images start from, or of texts")
    sample.add_argument("--resident", choices=["all", "one"], default="all", help="blocks in memory (default all)")
    sample.add_argument("--batch-size", metavar="N", default="64", help="images or texts at a time (default 64)")
    sample.add_argument("--grid", metavar="FILE", help="dit: PNG of all images (default samples.png)")
    sample.add_argument(
        "--out", metavar="PATH", help="dit: folder for a PNG of each image; masked-lm: file for texts as JSON lines"
    )
    sample.add_argument("--device", default="auto")
    sample.set_defaults(run_command=sampling_commands.sample)

    generate = subcommands.add_parser("generate", help="go on after prompts, token by token", allow_abbrev=False)
    generate.add_argument("run", metavar="RUN", help="run folder (of blocks or a control), or a saved model")
    generate.add_argument("--prompt", metavar="TEXT", action="append", help="once for each prompt (default: none)")
    generate.add_argument("--num", metavar="N", default="1", help="texts of each prompt (default 1)")
    generate.add_argument("--max-new-tokens", metavar="N", help="default 64, or as many as fit")
    generate.add_argument("--temperature", metavar="T", help="of the distribution that tokens are drawn from")
    generate.add_argument("--top-p", metavar="P", help="tokens are drawn from the most likely that have this share")
    generate.add_argument("--decoding", choices=["chain", "average"], help="the chain's answer, or the blocks' average")
    generate.add_argument(
        "--num-sampling-steps", metavar="N", help="steps of the chain, or passes of a loop; 4,16: of each prompt"
    )
    generate.add_argument("--settle", metavar="D", help="leave out steps once an answer changes by less, in nats")
    generate.add_argument("--start", choices=["zero", "noise"], help="start of the chain")
    generate.add_argument("--bridge", choices=BRIDGES, help="from a step's answer to the next z")
    generate.add_argument("--bridge-temperature", metavar="T", help="temperature of the answer in the bridge")
    generate.add_argument("--bridge-top-k", metavar="K", help="tokens that the bridge top-k keeps")
    generate.add_argument("--no-cache", action="store_true", help="read every text anew for each token: the same texts")
    generate.add_argument("--stale-cache", action="store_true", help="fused chains: read no place twice (an ablation)")
    generate.add_argument("--seed", default="0", help="seed of all noise")
    generate.add_argument("--batch-size", metavar="N", default="64", help="texts at a time (default 64)")
    generate.add_argument("--out", metavar="FILE", help="file for texts as JSON lines")
    generate.add_argument("--device", default="auto")
    generate.set_defaults(run_command=sampling_commands.generate)

    encode = subcommands.add_parser("encode", help="encode images as latents of an autoencoder", allow_abbrev=False)
    encode.add_argument("images", metavar="DIR", help="folder of images (as for dit-folder), or hub:NAME")
    encode.add_argument("--vae", metavar="DIR", required=True, help="folder of a diffusers AutoencoderKL")
    encode.add_argument("--out", metavar="DIR", required=True, help="folder of the latents; the same command goes on")
    encode.add_argument("--image-size", metavar="N", default="256", help="pixels that images are resized to")
    encode.add_argument("--batch-size", metavar="N", default="16", help="images at a time (default 16)")
    encode.add_argument("--device", default="auto")
    encode.set_defaults(run_command=commands.encode)

    compare = subcommands.add_parser("compare", help="train and score blocks and all controls", allow_abbrev=False)
    compare.add_argument("recipe", help=f"one of {', '.join(RECIPES)}")
    compare.add_argument("--out", metavar="DIR", help="folder of the comparison (default runs/compare-RECIPE)")
    compare.add_argument("--config", metavar="FILE", help="JSON object of settings; flags go before it")
    compare.add_argument("--seeds", metavar="N", default="3", help="seeds 0..N-1 (default 3)")
    compare.add_argument("--variant-seeds", metavar="N", help="seeds of the variants (default: all)")
    compare.add_argument("--folds", metavar="N", default="1", help="digits: folds, each with every seed (default 1)")
    for name, what in (
        ("methods", "methods"),
        ("budgets", "budgets"),
        ("presets", "presets of the blocks"),
        ("variants", "variants"),
    ):
        compare.add_argument(f"--{name}", metavar="A,B", help=f"these {what} alone, or none (default: all)")
    compare.add_argument(
        "--trunk", metavar="X", default="0.75", help="share of the trunk of blocks+trunk (default .75)"
    )
    compare.add_argument(
        "--samples", metavar="N", help="dit: images of a sampling seed (default 1000); language: texts (200)"
    )
    compare.add_argument("--sampling-seeds", metavar="N", default="3", help="seeds of samples (default 3)")
    _add_judges(compare)
    compare.add_argument("--split", choices=["test", "validation"], default="test")
    compare.add_argument("--device", default="auto")
    _add_settings(compare, without=("preset", "method", "budget", "trunk", "seed", "fold"))
    compare.set_defaults(run_command=commands.compare)

    predict = subcommands.add_parser("predict", help="classify image files with a run", allow_abbrev=False)
    predict.add_argument("run", metavar="RUN", help="run folder, or a saved model")
    predict.add_argument("images", metavar="IMAGE", nargs="+", help="image files")
    predict.add_argument("--invert", action="store_true", help="invert brightness (dark ink on white paper)")
    predict.add_argument("--top", metavar="K", default="3", help="classes to show")
    predict.set_defaults(run_command=commands.predict)

    report = subcommands.add_parser("report", help="write an HTML page of a run or a comparison", allow_abbrev=False)
    report.add_argument("folder", metavar="RUN|DIR", help="run folder, or folder of dblocks compare")
    report.add_argument("--split", choices=["test", "validation", "train"], help="default: test, or what was compared")
    report.add_argument("--data-dir", "--data", metavar="DIR", help="where the data are now (default: the run's)")
    report.add_argument("--out", metavar="FILE", help="HTML file to write (default: report.html in the folder)")
    report.add_argument("--device", default="auto")
    report.set_defaults(run_command=commands.report)

    plan = subcommands.add_parser("plan", help="predict the memory of every method before training", allow_abbrev=False)
    plan.add_argument("recipe", help=f"one of {', '.join(RECIPES)}")
    plan.add_argument("--config", metavar="FILE", help="JSON object of settings; flags go before it")
    plan.add_argument("--json", metavar="FILE", help="write the bytes there too")
    _add_settings(plan)
    plan.set_defaults(run_command=commands.plan)

    recipes = subcommands.add_parser("recipes", help="list the recipes")
    recipes.set_defaults(run_command=commands.recipes)
    return parser


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sampler",
        metavar="X",
        help="dit: euler, heun or dpmpp-2m; masked-lm: counts or ancestral (default: the run's)",
    )
    parser.add_argument(
        "--guidance", metavar="G", help="dit: classifier-free guidance; 1,2,1: by block (default: the run's)"
    )
    parser.add_argument("--vae", metavar="DIR", help="dit: autoencoder that decodes latents into images")
    parser.add_argument("--temperature", metavar="T", help="language: temperature of the tokens (default: the run's)")


def _add_judges(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--judge",
        metavar="MODEL",
        help="language: causal model for generative perplexity (folder, hub name, smollm2)",
    )
    parser.add_argument("--mauve", metavar="MODEL", help="language: model whose features MAUVE is taken of")


def _did_you_mean(flag: str) -> str:
    known = [f"--{name.replace('_', '-')}" for name in _all_settings()]
    close = difflib.get_close_matches(flag, known, n=2)
    return f"did you mean {' or '.join(close)}?" if close else "see dblocks COMMAND --help"


def _all_settings() -> dict[str, list[tuple[str, Any]]]:
    """Every setting by name, with the families that have it and its field in each."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for family, model in RUN_CONFIGS.items():
        for name, field in model.model_fields.items():
            found.setdefault(name, []).append((family, field))
    return found


def _add_settings(parser: argparse.ArgumentParser, without: Sequence[str] = ()) -> None:
    """A flag for every setting; values stay text here and are checked by the model, like those of a file."""
    group = parser.add_argument_group("settings (default: the recipe's)")
    for name, fields in _all_settings().items():
        if name in ("recipe", "family", "format_version", *without):
            continue
        kinds = [typing.get_args(f.annotation) for _, f in fields if typing.get_origin(f.annotation) is typing.Literal]
        known = dict.fromkeys(kind for of_one in kinds for kind in of_one)
        values = f" ({', '.join(map(str, known))})" if known else ""
        only = "" if len(fields) == len(RUN_CONFIGS) else f"{', '.join(family for family, _ in fields)}: "
        help_text = f"{only}{fields[0][1].description}{values}".replace("%", "%%")
        group.add_argument("--" + name.replace("_", "-"), metavar="X", default=None, dest=f"set_{name}", help=help_text)


if __name__ == "__main__":
    sys.exit(main())
