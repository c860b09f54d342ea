r"""One setting at a time against the default preset, on training and validation data only: what sets the defaults.

    python benchmarks/ablate.py vit-fashion epochs=2 z_dropout=0.2 --seeds 1 --data-dir FOLDER \
        --out benchmarks/results/vit-fashion/ablate.json
    python benchmarks/ablate.py vit-digits patch_size=4 updates=60 z_dropout=0.2 --seeds 1 --folds 5 \
        --out benchmarks/results/vit-digits/ablate.json

Around z_dropout=0.2, where the noisy target still has a say; at the default's 0.8 the settings of the noise hardly can.

Every variant is scored by the chain, by the z-free average of its blocks and by block 0 alone, so decoding is compared
without training again. Finished runs are kept in the file: the same command goes on, also after Ctrl-C, and trains only
what is missing.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from diffusionblocks.evaluation.classification import EvalOptions, evaluate_blocks, evaluate_plain
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.provenance import provenance
from diffusionblocks.recipes import resolve
from diffusionblocks.run_config import AnyRun
from diffusionblocks.training.data import load_split
from diffusionblocks.training.run import load_trained, make_trainers

REFERENCES: dict[str, dict[str, Any]] = {
    "default": {},
    "end-to-end": {"method": "end-to-end"},
    "shallow": {"method": "shallow"},
    "paper": {"preset": "paper"},
}

VARIANTS: dict[str, dict[str, Any]] = {
    "z dropout: 0": {"z_dropout": 0.0},
    "z dropout: 0.5": {"z_dropout": 0.5},
    "z dropout: 0.8": {"z_dropout": 0.8},
    "trunk: 0.25": {"trunk": 0.25},
    "trunk: 0.5": {"trunk": 0.5},
    "trunk: 0.75": {"trunk": 0.75},
    "plan draws: 0.25": {"plan_draws": 0.25},
    "plan draws: 0.5": {"plan_draws": 0.5},
    "plan draws: 1": {"plan_draws": 1.0},
    "law: P_mean -1.2, P_std 1.2": {"p_mean": -1.2, "p_std": 1.2},
    "law: P_mean -0.4": {"p_mean": -0.4},
    "law: P_mean 1.0": {"p_mean": 1.0},
    "law: P_std 0.6": {"p_std": 0.6},
    "law: P_std 1.5": {"p_std": 1.5},
    "conditioning: scale-shift": {"conditioning": "scale-shift"},
    "conditioning: adaln": {"conditioning": "adaln"},
    "weight: edm": {"weight": "edm"},
    "readout: hidden, random targets": {"targets": "random"},
    "readout: preconditioned, random targets": {"targets": "random", "readout": "preconditioned"},
    "overlap: gamma 0": {"gamma": 0.0},
    "overlap: gamma 0.2": {"gamma": 0.2},
}


def run_one(config: AnyRun) -> dict[str, Any]:
    """Train one run from scratch and score it on the validation split under every decoding."""
    with tempfile.TemporaryDirectory() as folder:
        for trainer in make_trainers(config, Path(folder) / "run"):
            trainer.train()
        model, _ = load_trained(Path(folder) / "run", config)
    images = load_split(config, "validation")
    if not isinstance(model, BlockwiseModel):
        return {"accuracy": evaluate_plain(model, images)["accuracy"]}
    zero = evaluate_blocks(model, images, EvalOptions(start="zero"))
    noise = evaluate_blocks(model, images, EvalOptions(start="noise"))
    return {
        "chain": zero["chain"]["accuracy"],
        "average": zero["average"]["accuracy"],
        "chain from noise": noise["chain"]["accuracy"],
        "block 0": zero["blocks"][0]["alone"]["accuracy"],
        "alone": [block["alone"]["accuracy"] for block in zero["blocks"]],
        "oracle": [block["oracle"]["accuracy"] for block in zero["blocks"]],
        "image drop": [block["image_drop"] for block in zero["blocks"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings of all runs, such as epochs=2")
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=1, help="digits: folds, each with all seeds")
    parser.add_argument("--only", help="variants whose name has this in it")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    common: dict[str, Any] = dict(setting.split("=", 1) for setting in options.settings)
    if options.data_dir:
        common["data_dir"] = options.data_dir
    result = json.loads(options.out.read_text()) if options.out.exists() else {"recipe": options.recipe, "runs": []}
    done = {(run["variant"], run["seed"], run["fold"]) for run in result["runs"]}
    for seed in range(options.seeds):
        for fold in range(options.folds):
            for name, settings in {**REFERENCES, **VARIANTS}.items():
                if (options.only and options.only not in name) or (name, seed, fold) in done:
                    continue
                config = resolve(options.recipe, flags={**common, **settings, "seed": seed, "fold": fold})
                scores = run_one(config)
                result["runs"].append({"variant": name, "settings": settings, "seed": seed, "fold": fold, **scores})
                result |= {**provenance(), "common": common}
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(result, indent=1) + "\n")
                print(f"seed {seed}, fold {fold}, {name}: {scores}", flush=True)


if __name__ == "__main__":
    main()
