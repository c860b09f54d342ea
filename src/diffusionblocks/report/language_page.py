"""What the report of a run of a masked language model says; it is made from the files of the run folder alone."""

from pathlib import Path
from typing import Any

from diffusionblocks.report.language_parts import headline, page_of, read_bits, text_tables, tiles
from diffusionblocks.report.language_tables import share_rows
from diffusionblocks.report.metrics import METRICS
from diffusionblocks.report.passages import bits_of_run
from diffusionblocks.report.run_parts import settings_of

BOUND = METRICS["masked-lm"]


def language_page(run_dir: Path, split: str, prefix: str = "") -> dict[str, Any]:
    """Everything the template needs of a run that has been evaluated on the split.

    Args:
        run_dir: the run folder, with eval-SPLIT.json.
        split: the split whose likelihood was bounded.
        prefix: goes before the ids of its sections and figures, where a page has more than this run.

    Raises:
        InputError: a file that cannot be read, or an evaluation without the bound.
    """
    settings, result = settings_of(run_dir), read_bits(run_dir, split, BOUND)
    what = f"an upper bound on the negative log-likelihood of {result['tokens']:,} {split} tokens"
    own = {
        "headline": headline(result, what, BOUND.digits),
        "tiles": tiles(result, "upper bound", BOUND.digits),
        "by_level": bits_of_run(f"{prefix}levels", result),
        "tables": [_shares(result), *text_tables(result)],
    }
    return page_of(run_dir, prefix, settings, result, own, "Block 0 sees most tokens masked.")


def _shares(result: dict[str, Any]) -> dict[str, Any]:
    """The blocks' shares of the bound."""
    return {
        "name": "shares",
        "title": "Bits per character by block" if len(result["blocks"]) > 1 else "Bits per character",
        "rows": share_rows(result),
        "notes": [
            "Upper bounds. Bits per masked token times the width of a block's range is its share of the bits per token."
        ],
    }
