"""What a comparison of language models says of its bound: which side is better, and by how much."""

import json
import re

import language_folders
import numpy as np
import results
from language_folders import BITS, ROWS, TEXT, bits_row
from scipy import stats

from diffusionblocks.report.columns import table_row
from diffusionblocks.report.metrics import METRICS
from diffusionblocks.report.statistics import group
from diffusionblocks.report.tables import compare_table, score_lines
from diffusionblocks.report.verdicts import cards, depth, leads

BOUND = METRICS["masked-lm"]


def paired(own, other):
    low, high = stats.ttest_rel(own, other).confidence_interval()
    mean = np.mean(own) - np.mean(other)
    return f"{mean:+.3f} bits/char (95% interval {low:+.3f} to {high:+.3f}, n = 3)".replace("-", "−")


def test_the_first_lines_say_that_it_is_a_bound_and_which_side_is_better():
    blocks, trunk, whole = (BITS[name, 1000] for name in ("blocks", "blocks+trunk", "end-to-end"))
    first, second, *beside = leads(group(ROWS), BOUND)
    assert first == (
        f"blocks, B = 3: a bound of {np.mean(blocks):.3f} bits/char (sd {np.std(blocks, ddof=1):.3f} bits/char, "
        f"n = 3 seeds), {paired(blocks, whole)} beside end to end at equal layer evaluations; lower is better, so end "
        "to end is better."
    )
    assert second.endswith(
        f"{paired(trunk, whole)} beside end to end at equal layer evaluations; lower is better, and the interval "
        "holds 0, so neither is ahead."
    )
    ensemble = BITS["shallow-ensemble", 1000]
    assert beside == [
        f"blocks, B = 3, minus the shallow network at N updates: {paired(blocks, BITS['shallow', 1000])}; lower is "
        "better, so blocks are better.",
        f"blocks, B = 3, minus the ensemble of B shallow networks: {paired(blocks, ensemble)}; lower is better, so "
        "blocks are better.",
        f"blocks+trunk, B = 3, minus the shallow network at B N updates: {paired(trunk, BITS['shallow', 3000])}; "
        "lower is better, so blocks+trunk are better.",
        f"blocks+trunk, B = 3, minus the ensemble of B shallow networks: {paired(trunk, ensemble)}; lower is better, "
        "so blocks+trunk are better.",
    ]


def test_cards_hold_blocks_against_every_control():
    found = {card["name"]: card for card in cards(group(ROWS), BOUND)}
    blocks = BITS["blocks", 1000]
    assert found["blocks, B = 3"] == {
        "name": "blocks, B = 3",
        "likelihood bound": f"{np.mean(blocks):.3f} bits/char (sd {np.std(blocks, ddof=1):.3f} bits/char, n = 3 seeds)",
        "minus end to end": paired(blocks, BITS["end-to-end", 1000]),
        "minus the shallow network at N": paired(blocks, BITS["shallow", 1000]),
        "minus the shallow network at B N": paired(blocks, BITS["shallow", 3000]),
        "minus the ensemble of B shallow networks": paired(blocks, BITS["shallow-ensemble", 1000]),
    }


def test_depth_helps_where_the_bound_of_end_to_end_is_lower():
    sentence = depth(group(ROWS), BOUND)
    assert sentence.startswith(
        f"Depth helps here: end to end beats the shallow network after equally many samples by "
        f"{paired(BITS['end-to-end', 1000], BITS['shallow', 1000])}"
    )
    assert sentence.endswith("these are upper bounds, and lower is better.")
    higher = [bits_row("shallow", seed, bits) for seed, bits in enumerate((2.7, 2.71, 2.69))]
    assert "do not show a benefit of depth" in depth(group([*ROWS[:3], *higher]), BOUND)


def test_the_table_has_the_columns_that_were_measured():
    groups = group(ROWS)
    lines = {(line["method"], line["updates"]): line for line in (table_row(key, groups, BOUND) for key in groups)}
    line, scores = lines["blocks, B = 3", "1,000"], BITS["blocks", 1000]
    assert line["likelihood bound, bits/char"] == f"{np.mean(scores):.3f}"
    assert line["sd, bits/char"] == f"{np.std(scores, ddof=1):.3f}"
    assert line["n-gram divergence, bits"] == f"{np.mean(scores) / 10:.4f}"
    assert (line["bits per token"], line["block 0, bits per masked token"]) == (f"{np.mean(scores) + 0.1:.3f}", "4.321")
    assert lines["end-to-end", "1,000"]["block 0, bits per masked token"] == ""
    assert lines["checkpointing", "1,000"]["likelihood bound, bits/char"] == ""
    assert not any("MAUVE" in name or "perplexity" in name or "chain" in name for name in line)
    shown = [str(column.header) for column in compare_table(groups, BOUND).columns]
    assert "likelihood bound\nbits/char" in shown
    assert "bits per token" not in shown
    judged = [dict(row, metrics={**row["metrics"], "mauve": 0.91234}) for row in ROWS[:3]]
    (line,) = (table_row(key, groups, BOUND) for groups in [group(judged)] for key in groups)
    assert line["MAUVE"] == "0.912"


def test_the_terminal_has_the_rows_of_the_page(tmp_path, capsys):
    run = language_folders.run(tmp_path / "run", 2.9012)
    shares, text, sampling, note, _, last = score_lines(json.loads((run / "eval-test.json").read_text()))
    assert "upper bound" in str(shares.title)
    cells = [list(column.cells) for column in shares.columns]
    assert [column[0] for column in cells] == ["0", "0.667", "1.000", "1.451", "0.0010", "50.0", "4.500"]
    assert list(text.columns[1].cells) == ["0.2123", "0.8765", "4.5678", "", "456.79"]
    assert sampling.startswith("200 texts of each of 3 sampling seeds")
    assert note == f"note: {TEXT['notes'][0]}"
    assert "2.901 bits per character ± 0.004 (an upper bound; 54,321 characters)" in last


def test_the_results_page_shows_such_a_comparison(tmp_path):
    language_folders.comparison(tmp_path / "mdm-shakespeare")
    page = results.page(tmp_path)
    blocks, whole = np.array(BITS["blocks", 1000]), np.array(BITS["end-to-end", 1000])
    low, high = stats.ttest_rel(blocks, whole).confidence_interval(0.95)
    line = next(line for line in page.splitlines() if line.startswith("| blocks |  | default | 3 | layer-evaluations"))
    assert f"| {blocks.mean():.3f} ± {blocks.std(ddof=1):.3f} | {np.mean(blocks - whole):+.3f} |" in line
    assert f"| {low:+.3f} to {high:+.3f} |" in line
    assert "likelihood bound bits/char" in page
    assert "12 masks of every window" in page
    assert "Bits per character are an upper bound" in page
    assert "- Yes: end to end minus shallow is -0.151 bits/char" in page
    assert "these are upper bounds, and lower is better" in page
    assert "first block, chain" not in page
    assert not re.search(r"\bnan\b", page)
