"""The report of generated images: a metric that is better when lower, its controls, its pictures, its noise levels."""

import base64
import html
import json
import re

import dit_folders
import numpy as np
import pytest
from dit_folders import FEATURES, LEVELS, ROWS, fid_row, fid_rows
from report_folders import PREDICTED
from scipy import stats

from diffusionblocks.cli import main
from diffusionblocks.errors import InputError
from diffusionblocks.report import page as page_module
from diffusionblocks.report.columns import table_row
from diffusionblocks.report.comparison import load_comparison
from diffusionblocks.report.groups import control
from diffusionblocks.report.metrics import METRICS, Metric
from diffusionblocks.report.statistics import beats, group
from diffusionblocks.report.tables import compare_table
from diffusionblocks.report.verdicts import cards, depth, leads, savings

FID = METRICS["dit"]
WHOLE, SHALLOW, LONGER, BLOCKS, TRUNK = ([row["metrics"]["fid"] for row in ROWS[k : k + 3]] for k in range(0, 15, 3))


def text_of(page):
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def labels(page):
    return [html.unescape(label) for label in re.findall(r'<svg role="img" aria-label="([^"]*)"', page)]


def paired(own, other):
    low, high = stats.ttest_rel(own, other).confidence_interval()
    mean = np.mean(own) - np.mean(other)
    return f"{mean:+.2f} (95% interval {low:+.2f} to {high:+.2f}, n = 3)".replace("-", "−")


@pytest.fixture
def known(monkeypatch):
    """What needs a network of the family: its predicted memory."""
    dit_folders.foresee(monkeypatch)


@pytest.fixture
def page(tmp_path, known):
    folder = dit_folders.with_runs(tmp_path / "all")
    assert main(["report", str(folder)]) == 0
    return (folder / "report.html").read_text()


def test_the_first_lines_say_which_side_is_better():
    first, second, *shallow = leads(group(ROWS), FID)
    assert first == (
        f"blocks, B = 3: FID {np.mean(BLOCKS):.2f} (sd {np.std(BLOCKS, ddof=1):.2f}, n = 3 seeds), "
        f"{paired(BLOCKS, WHOLE)} beside end to end at equal layer evaluations; lower is better, so end to end is "
        "better."
    )
    assert second.startswith("blocks+trunk, B = 3: FID ")
    assert second.endswith(
        f"{paired(TRUNK, WHOLE)} beside end to end at equal layer evaluations; lower is better, and "
        "the interval holds 0, so neither is ahead."
    )
    assert shallow == [
        f"blocks, B = 3, minus the shallow network at N updates: FID {paired(BLOCKS, SHALLOW)}; lower is better, so "
        "blocks are better.",
        f"blocks+trunk, B = 3, minus the shallow network at B N updates: FID {paired(TRUNK, LONGER)}; lower is better, "
        "and the interval holds 0, so neither is ahead.",
    ]
    (one,) = leads(group([row for row in ROWS[:12] if row["seed"] == 0 and row["method"] != "shallow"]), FID)
    assert one.endswith(
        "+2.20 (one seed: no interval) beside end to end at equal layer evaluations; lower is better, and from one "
        "seed neither is ahead."
    )


def test_cards_hold_a_way_of_sampling_against_the_same_only():
    found = {card["name"]: card for card in cards(group(ROWS), FID)}
    guided = [[row["metrics"]["fid"] for row in ROWS[k : k + 3]] for k in (15, 18)]
    assert found["blocks, B = 3, guidance 2"] == {
        "name": "blocks, B = 3, guidance 2",
        "FID": f"{np.mean(guided[1]):.2f} (sd {np.std(guided[1], ddof=1):.2f}, n = 3 seeds)",
        "minus end to end": paired(guided[1], guided[0]),
    }
    cut = [row["metrics"]["fid"] for row in ROWS[21:24]]
    assert found["blocks, B = 3, cut uniform-log"]["minus end to end"] == paired(cut, WHOLE)
    assert found["blocks, B = 3"]["minus the shallow network at B N"] == paired(BLOCKS, LONGER)
    assert not any("chain" in name or "ensemble" in name for card in found.values() for name in card)
    groups = group(ROWS[:3] + ROWS[18:21])
    assert control(groups, "end-to-end", list(groups)[1]) is None


@pytest.mark.parametrize(
    ("shallow", "words"),
    [
        (
            (31.0, 30.2, 29.4),
            "end to end beats the shallow network after equally many samples by FID −",
        ),
        ((15.0, 16.2, 15.4), "do not show a benefit of depth"),
        ((21.0, 20.2, 22.4), "do not show a benefit of depth"),
        ((31.0,), "One seed cannot show a benefit of depth"),
    ],
)
def test_depth_helps_where_end_to_end_is_lower(shallow, words):
    sentence = depth(group([*ROWS[:3], *fid_rows("shallow", shallow)]), FID)
    assert words in sentence
    assert "lower is better" in sentence


def test_beating_turns_around_with_the_direction():
    low, high = fid_rows("blocks", (1.0, 1.2, 1.1)), fid_rows("shallow", (2.0, 2.1, 2.3))
    assert beats(low, high, "fid", lower_is_better=True)
    assert not beats(high, low, "fid", lower_is_better=True)
    assert beats(high, low, "fid")
    assert not beats(low, high, "fid")


def test_the_table_has_the_columns_of_the_metric():
    groups = group(ROWS)
    lines = {(line["method"], line["updates"]): line for line in (table_row(key, groups, FID) for key in groups)}
    blocks, whole = lines["blocks, B = 3", "1,000"], lines["end-to-end", "1,000"]
    low, high = stats.ttest_rel(BLOCKS, WHOLE).confidence_interval()
    assert blocks["minus end to end"] == f"+{np.mean(BLOCKS) - np.mean(WHOLE):.2f} [+{low:.2f}, +{high:.2f}], n = 3"
    assert (blocks["FID"], blocks["sd"]) == (f"{np.mean(BLOCKS):.2f}", f"{np.std(BLOCKS, ddof=1):.2f}")
    assert blocks["KID"] == f"{np.mean(BLOCKS) / 1000:.4f}"
    assert (blocks["precision"], blocks["recall"], blocks["denoising error"]) == ("0.700", "0.400", "0.3000")
    ratios = "FLOPs of a denoising step, ratio", "images/s when sampling, ratio"
    assert [[line[name] for name in ratios] for line in (blocks, whole)] == [["0.350", "2.86"], ["1.000", "1.00"]]
    assert lines["checkpointing", "1,000"]["FID"] == ""
    assert not any(word in name for name in blocks for word in ("accuracy", "chain", "points", "%"))
    shown = [str(column.header) for column in compare_table(groups, FID).columns]
    assert "FID" in shown
    assert "se over sampling seeds" not in shown
    assert any("A denoising step takes 0.350 of its FLOPs, and sampling makes 2.86 times" in s for s in savings(groups))


def test_another_metric_brings_its_unit_and_digits():
    bits = Metric("bpc", "bits per character", "bits", 1, 3, lower_is_better=True, columns=())
    rows = [
        fid_row(method, seed, 0.0, metrics={"bpc": value})
        for method, scores in (("end-to-end", (1.5, 1.52)), ("blocks", (1.6, 1.63)))
        for seed, value in enumerate(scores)
    ]
    groups = group(rows)
    (lead,) = leads(groups, bits)
    assert lead.startswith("blocks, B = 3: 1.615 bits (sd 0.021 bits, n = 2 seeds), +0.105 bits (95% interval +0.041")
    line = table_row(list(groups)[1], groups, bits)
    assert line["bits per character, bits"] == "1.615"
    assert line["minus end to end, bits"].startswith("+0.105 [+0.041, +0.169]")


def test_the_page_says_what_images_were_judged_with(page):
    text = text_of(page)
    for part in (
        FEATURES["name"],
        FEATURES["sha256"],
        "1,000 samples, drawn with dpmpp-2m in 20 steps, as the mean over 3 sampling seeds",
        "A FID with these features can be compared with those of the same table only",
        "There is no ensemble of shallow networks among the controls",
        "a bar for their mean; lower is better",
        "Checkpointing: memory and time alone differ from end to end, so there is no FID of its own",
    ):
        assert part in text
    assert "accuracy" not in text.lower()
    assert "nan" not in text.lower()
    assert re.search(r"</h1>\s*<p[^>]*>blocks, B = 3: FID", page)


def test_rows_of_other_features_are_refused(tmp_path, capsys):
    for number, changes in enumerate(
        (
            {"rows": [*ROWS[:3], fid_row("blocks", 0, 1.0, features="ff" * 32)]},
            {
                "rows": [dict(ROWS[0], features="aa"), dict(ROWS[1], features="bb")],
                "features": {**FEATURES, "sha256": "aa"},
            },
        )
    ):
        folder = dit_folders.comparison(tmp_path / str(number), **changes)
        assert main(["report", str(folder)]) == 2
        assert "features=" in capsys.readouterr().err
    same = [dict(row, features=FEATURES["sha256"]) for row in ROWS]
    assert len(load_comparison(dit_folders.comparison(tmp_path / "same", same) / "compare.json").groups) == 9
    with pytest.raises(InputError, match="metric='bleu'"):
        load_comparison(dit_folders.comparison(tmp_path / "other", metric="bleu") / "compare.json")


def test_the_pictures_are_those_of_the_first_seed_with_their_score(page, tmp_path):
    before = page[: page.index("One run of blocks in detail")]
    found = re.findall(r'<img src="data:image/png;base64,([^"]*)" alt="([^"]*)"><figcaption>(.*?)</figcaption>', before)
    runs = tmp_path / "all/runs"
    assert [(caption, base64.b64decode(data)) for data, _, caption in found] == [
        (f"{caption.partition(': ')[0]}, seed 0: {caption.partition(': ')[2]}", (runs / path).read_bytes())
        for caption, path in (
            ("end-to-end; 1,000 updates: FID 20.10", "end-to-end-seed0/eval-test.png"),
            ("end-to-end, guidance 2; 1,000 updates: FID 15.20", "end-to-end-seed0/eval-test-guidance-2.png"),
            ("shallow, B = 3; 1,000 updates: FID 31.00", "shallow-N-seed0/eval-test.png"),
            ("shallow, B = 3; 3,000 updates: FID 23.90", "shallow-BN-seed0/eval-test.png"),
            ("blocks, B = 3; 1,000 updates: FID 22.30", "blocks-default-seed0/eval-test.png"),
            ("blocks, B = 3, guidance 2; 1,000 updates: FID 16.40", "blocks-default-seed0/eval-test-guidance-2.png"),
            ("blocks+trunk, B = 3; 1,000 updates: FID 21.90", "blocks+trunk-seed0/eval-test.png"),
            ("blocks, B = 3, cut uniform-log; 1,000 updates: FID 28.40", "blocks-cut-seed0/eval-test.png"),
        )
    ]
    assert all(alt == f"Samples, {caption}" for _, alt, caption in found)


def edges(config=dit_folders.CONFIG):
    """Equal masses of the truncated law, by SciPy."""
    a, b = ((np.log(config[end]) - config["p_mean"]) / config["p_std"] for end in ("sigma_min", "sigma_max"))
    law = stats.truncnorm(a, b, config["p_mean"], config["p_std"])
    return np.exp(law.ppf([2 / 3, 1 / 3]))


def test_the_error_over_noise_has_a_line_per_method_and_the_edges_of_the_blocks(page):
    (label,) = (text for text in labels(page) if text.startswith("Weighted denoising error") and "end-to-end" in text)
    methods, inner = label.split("; edges of blocks at ")
    assert inner == ", ".join(f"{edge:.3g}" for edge in edges())
    assert methods.count("at sigma 0.01,") == 5
    assert "cut" not in methods
    assert f"blocks, B = 3; 1,000 updates {0.223 + 1 / 1.01:.3g} at sigma 0.01, {0.223 + 1 / 13:.3g} at 12" in methods


def test_a_comparison_without_its_runs_has_neither_pictures_nor_noise_levels(tmp_path):
    folder = dit_folders.comparison(tmp_path / "all")
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    titles = ["All methods", "FID, run by run", "Memory of one update", "How it was made"]
    assert [name for name in re.findall(r"<h2>(.*?)</h2>", page) if "B = 3" not in name] == titles
    assert "<img" not in page


def test_the_run_in_detail_is_of_the_settings_that_the_controls_have(page):
    assert f"cut {dit_folders.CONFIG['cut']}" in text_of(page[page.index("One run of blocks in detail") :])


@pytest.mark.parametrize("method", ["blocks", "end-to-end"])
def test_the_page_of_a_run_needs_its_folder_alone(tmp_path, known, monkeypatch, method):
    def no_data(*_):
        raise AssertionError("the page of a generating run asks for no images")

    monkeypatch.setattr(page_module, "read_images", no_data)
    run = dit_folders.run(tmp_path / "run", 22.3, method, ("", "guidance-2"))
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    expected = ["Noise law and its cut", "Training loss", "Denoising error", "Memory of one update", "Samples"]
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", page) == [*expected, "Settings", "How to reproduce"]
    text = text_of(page)
    for part in (
        "FID 22.30 of 1,000 samples (standard error 0.11 over 3 sampling seeds) against 10,000 test images; dpmpp-2m, "
        "20 steps, guidance 1, one training seed; lower is better.",
        f"Features: 64 of the {FEATURES['name']}, SHA-256 {FEATURES['sha256']}",
        "KID 0.0223",
        "Triangles mark the 13 levels at which sampling runs.",
        "precision 0.700",
        "recall 0.400",
        "guidance 1: FID 22.30",
    ):
        assert part in text
    assert page.count("<img src=") == 2
    law, loss, error, memory = labels(page)
    assert f"weights {2:.3g} and {PREDICTED['weights'] / 1e6:.3g}" in memory
    if method == "blocks":
        assert law.endswith(f"at sigma 80, {', '.join(f'{edge:.3g}' for edge in edges())}, 0.002")
        assert "block 1 ends at 0.167" in loss
        noisiest = f"block 0 {0.223 + 1 / (1 + LEVELS[4]):.3g} at sigma 3, {0.223 + 1 / (1 + LEVELS[5]):.3g} at 12"
        assert noisiest in error
    else:
        assert law.endswith("for one network from sigma 80, 0.002")
        assert "block" not in loss + error + law
        assert "edges" not in error


def test_a_run_of_a_family_without_a_page_is_refused(tmp_path, capsys):
    run = dit_folders.run(tmp_path / "run", 22.3)
    (run / "config.json").write_text(json.dumps(dit_folders.CONFIG | {"family": "none-such"}))
    assert main(["report", str(run)]) == 2
    assert "family='none-such'" in capsys.readouterr().err
