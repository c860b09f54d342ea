"""What the report of an autoregressive model says: of a run, and of the blocks of a comparison's runs."""

from pathlib import Path
from typing import Any

from diffusionblocks.report import figures
from diffusionblocks.report.causal_tables import ESTIMATES, answer_rows, block_rows
from diffusionblocks.report.groups import OF_BLOCKS, Groups, is_bound, is_main, name_of
from diffusionblocks.report.language_parts import headline, page_of, read_bits, text_tables, tiles
from diffusionblocks.report.metrics import METRICS
from diffusionblocks.report.panel import Panel
from diffusionblocks.report.run_parts import settings_of
from diffusionblocks.report.statistics import values

BITS = METRICS["causal-lm"]


def causal_page(run_dir: Path, split: str, prefix: str = "") -> dict[str, Any]:
    """Everything the template needs of a run that has been evaluated on the split.

    Args:
        run_dir: the run folder, with eval-SPLIT.json.
        split: the split whose likelihood was found.
        prefix: goes before the ids of its sections and figures, where a page has more than this run.

    Raises:
        InputError: a file that cannot be read, or an evaluation without bits.
    """
    settings, result = settings_of(run_dir), read_bits(run_dir, split, BITS)
    estimate = {"exact": "the exact", "bound": "an upper bound on the"}[result["estimate"]]
    whose = {"network": "the network", "average": f"the average of the {_parts(result)}", "chain": "the chain"}
    what = f"{estimate} negative log-likelihood of {result['tokens']:,} {split} tokens for {whose[result['answer']]}"
    own = {
        "headline": headline(result, what, BITS.digits),
        "tiles": tiles(result, ESTIMATES[result["estimate"]], BITS.digits),
        "by_level": None,
        "tables": [_answers(result), *_blocks(result, settings), *text_tables(result)],
    }
    return page_of(run_dir, prefix, settings, result, own, "Block 0 has the most noise.")


def _parts(result: dict[str, Any]) -> str:
    return "blocks at z = 0" if result["blocks"] else "members"


def _answers(result: dict[str, Any]) -> dict[str, Any]:
    """Every answer with its bits."""
    notes = [f"The run's own answer: {result['answer']}. Exact: the likelihood itself, with no noise in it."]
    if result["blocks"]:
        notes.append(
            "Upper bound: the answer is a mixture over z, or over tokens drawn on the way, and its likelihood is at "
            "least this good. That of the chain is for a sampled bridge, whatever bridge texts were generated with; of "
            "other bridges there is none."
        )
    return {"name": "answers", "title": "Answers", "rows": answer_rows(result), "notes": notes}


def _blocks(result: dict[str, Any], settings: dict[str, Any]) -> list[dict[str, Any]]:
    """What each block knows, and what noise gives away to it."""
    if not result["blocks"]:
        return []
    notes = [
        "At its own noise a block is given the very token that it is asked for, under noise. The bits that this saves "
        "are what noise gives away (Bayes' rule), not knowledge: the next token of a text has no such z until it is "
        "chosen. What a block knows of it are its bits at z = 0.",
        f"{100 * settings['z_dropout']:.0f}% of training samples had z = 0 for their target.",
    ]
    return [{"name": "blocks", "title": "Bits per character by block", "rows": block_rows(result), "notes": notes}]


def blocks_beside_shallow(name: str, groups: Groups) -> list[Panel]:
    """Bits of each block at z = 0 and of their average, beside the shallow network, at equal layer evaluations.

    Blocks that answer with their chain are left out: they need not have been trained at z = 0.
    """
    found: dict[str, list[float]] = {}
    for key, rows in groups.items():
        if key.method in OF_BLOCKS and key.budget == "layer-evaluations" and is_main(key) and not is_bound(rows):
            each = zip(*values(rows, "each_bits"), strict=True)
            of_blocks = {f"{name_of(key)}: block {k}": list(bits) for k, bits in enumerate(each)}
            if of_blocks:
                found |= of_blocks | {f"{name_of(key)}: average": values(rows, "average_bits")}
    if not found:
        return []
    shallow = {
        f"{name_of(key)}; {key.updates:,} updates": values(rows, BITS.name)
        for key, rows in groups.items()
        if key.method == "shallow"
    }
    caption = (
        "At z = 0, exact; a point per run, a bar for their mean. A block is as deep as the shallow network. Lower is "
        "better."
    )
    figure = figures.dots(name, shallow | found, "bits per character")
    return [Panel("Each block beside the shallow network", figure, caption)]
