"""The report of language models: a bound and its shares by block, bits over masked shares, generated text."""

import html
import json
import re
from contextlib import contextmanager
from html.parser import HTMLParser

import language_folders
import numpy as np
import pytest
from language_folders import BITS, EXAMPLES, ROWS
from report_folders import PREDICTED, foresee

from diffusionblocks.cli import main
from diffusionblocks.config import MaskedLmConfig
from diffusionblocks.report import figures
from diffusionblocks.report import page as page_module
from diffusionblocks.report.tables import score_lines


def text_of(page):
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def labels(page):
    return [html.unescape(label) for label in re.findall(r'<svg role="img" aria-label="([^"]*)"', page)]


def rows_of(page, title):
    """The rows of the table in the section of this title, as lists of cells."""
    section = page[re.search(rf"<h2[^>]*>{title}</h2>", page).start() :]
    table = section[section.index("<table>") : section.index("</table>")]
    return [
        [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", table, flags=re.DOTALL)
    ]


def report(folder):
    assert main(["report", str(folder)]) == 0
    return (folder / "report.html").read_text()


@pytest.fixture
def known(monkeypatch):
    foresee(monkeypatch)


@contextmanager
def kept(monkeypatch):
    """The drawings that figures make."""
    drawings, draw = [], figures.drawing

    @contextmanager
    def keep(name, height):
        with draw(name, height) as d:
            drawings.append(d)
            yield d

    monkeypatch.setattr(figures, "drawing", keep)
    yield drawings


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("num_blocks", [1, 3])
def test_the_figure_of_the_law_is_that_of_masking(monkeypatch, schedule, num_blocks):
    gamma, levels = 0.1, [1.0, 0.6, 0.2]
    config = MaskedLmConfig(schedule=schedule, num_blocks=num_blocks, gamma=gamma)
    with kept(monkeypatch) as drawings:
        svg = figures.noise_law("law", config, levels)
    level_of = (lambda share: share) if schedule == "linear" else (lambda share: 2 / np.pi * np.arcsin(share))
    axes = drawings[0].axes
    bars = {width: [line.get_xdata() for line in axes.lines if line.get_linewidth() == width] for width in (2, 7)}
    for block in range(num_blocks):
        lo, hi = 1 - (block + 1) / num_blocks, 1 - block / num_blocks
        overlap = gamma * (hi - lo)
        wide = [max(lo - overlap, 0), min(hi + overlap, 1)]
        np.testing.assert_allclose(bars[7][block], level_of(np.array([lo, hi])), atol=1e-9)
        np.testing.assert_allclose(bars[2][block], level_of(np.array(wide)), atol=1e-9)
    (density,) = (line.get_xydata() for line in axes.lines if line.get_linewidth() == 1.5)
    t = density[:, 0]
    expected = np.ones_like(t) if schedule == "linear" else np.pi / 2 * np.cos(np.pi * t / 2)
    np.testing.assert_allclose(density[:, 1], expected, atol=1e-3)
    (marks,) = (line.get_xdata() for line in axes.lines if line.get_marker() == "v")
    np.testing.assert_allclose(marks, levels)
    assert axes.get_xscale() == "linear"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.25", "0.5", "0.75", "1"]
    edges = ", ".join(f"{level_of(1 - k / num_blocks):.3g}" for k in range(num_blocks + 1))
    cut = f"cut into {num_blocks} blocks at" if num_blocks > 1 else "for one network from"
    assert labels(svg) == [f"Density of the masking law over the level t, {cut} t {edges}"]


@pytest.mark.parametrize("method", ["blocks", "end-to-end", "shallow-ensemble"])
def test_the_page_of_a_run_has_the_numbers_of_its_file(tmp_path, known, monkeypatch, method):
    def no_data(*_):
        raise AssertionError("the page of a language model asks for no data")

    monkeypatch.setattr(page_module, "read_images", no_data)
    page = report(language_folders.run(tmp_path / "run", 2.9012, method))
    of_blocks = " by block" if method == "blocks" else ""
    assert re.findall(r"<h2[^>]*>(.*?)</h2>", page) == [
        *("Noise law and its cut", "Training loss", "Bits per masked token", "Memory of one update"),
        *(f"Bits per character{of_blocks}", "Metrics of generated text", "Generated text"),
        *("Settings", "How to reproduce"),
    ]
    text = text_of(page)
    for part in (
        "2.901 ± 0.004 bits per character (standard error over 869 windows): an upper bound on the negative "
        "log-likelihood of 55,555 test tokens, one training seed; lower is better.",
        "The bound is an estimate from 12 masks of every window of the test split (54,321 characters, tokenizer: "
        "characters; seed 3).",
        "Text: 200 texts of each of 3 sampling seeds, generated with counts in 32 steps at temperature 0.9.",
        "shakespeare.txt, 55,555 test tokens (characters); one seed (0); 1,000 updates",
        "bits per byte 2.891 upper bound",
        f"perplexity per token {2**3.0012:.3f} upper bound",
        "divergence of 4-grams of characters from held-out text, bits 0.2123 held-out text: 0.1789",
        "Triangles mark the 4 levels at which sampling runs.",
        "Every number is of 12,345 characters of each sampling seed",
        "Judge: judge-135M (weights sha256 0123).",
        "1 of 600 samples are empty; the metrics are of the others.",
    ):
        assert part in text
    assert not re.search(r"\bnan\b", text.lower())
    assert "share of 4-grams of words repeated within a text 0" not in text  # a metric without a value is no tile
    law, _, bits, memory = labels(page)
    assert f"weights {2:.3g} and {PREDICTED['weights'] / 1e6:.3g}" in memory
    shares = rows_of(page, f"Bits per character{of_blocks}")
    if method == "blocks":
        assert law.endswith("cut into 3 blocks at t 1, 0.667, 0.333, 0")
        assert bits.startswith(f"Bits per masked token over masked share: block 0 {2.9012 * (0.5 + 8.5 / 12):.3g} at ")
        assert bits.endswith("; edges of blocks at 0.667, 0.333")
        assert shares[1:] == [
            ["0", "0.667", "1.000", "1.451", "0.0010", "50.0", "4.500"],
            ["1", "0.333", "0.667", "0.967", "0.0020", "33.3", "3.500"],
            ["2", "0.000", "0.333", "0.484", "0.0030", "16.7", "2.500"],
            ["all", "0.000", "1.000", "2.901", "0.0041", "100.0", "3.001"],
        ]
    else:
        assert "for one network" in law
        assert "edges" not in bits
        assert shares[1:] == [["network", "0.000", "1.000", "2.901", "0.0010", "100.0", "4.500"]]


def test_the_metrics_of_text_stand_beside_those_of_held_out_text(tmp_path, known):
    page = report(language_folders.run(tmp_path / "run", 2.9))
    assert rows_of(page, "Metrics of generated text")[1:] == [
        ["divergence of 4-grams of characters from held-out text, bits", "0.2123", "0.0012", "0.1789"],
        ["share of distinct 2-grams of words", "0.8765", "0.0100", "0.8123"],
        ["entropy of characters, bits", "4.5678", "–", "4.6000"],
        ["share of 4-grams of words repeated within a text", "–", "–", "0.0123"],
        ["perplexity for the judge", "456.79", "3.21", "123.45"],
    ]


class Passages(HTMLParser):
    """The texts of <pre class="passage">, as a reader of HTML sees them, and the tags inside of them."""

    def __init__(self):
        super().__init__()
        self.texts, self.tags, self.inside = [], [], False

    def handle_starttag(self, tag, attrs):
        if self.inside:
            self.tags.append(tag)
        if tag == "pre" and ("class", "passage") in attrs:
            self.inside = True
            self.texts.append("")

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "pre"

    def handle_data(self, data):
        if self.inside:
            self.texts[-1] += data


def passages(page):
    parser = Passages()
    parser.feed(page)
    assert parser.tags == []
    assert all(text.startswith("\n") for text in parser.texts)
    return [text[1:] for text in parser.texts]  # HTML drops the first line break of a pre


def test_examples_are_shown_as_they_are_and_nothing_of_them_is_markup(tmp_path, known):
    page = report(language_folders.run(tmp_path / "run", 2.9))
    assert passages(page) == EXAMPLES
    assert "<script" not in page
    assert "<figcaption>seed 4, text 0</figcaption>" in page


def test_a_run_that_generated_nothing_says_nothing_of_text(tmp_path, known):
    run = language_folders.run(tmp_path / "run", 2.9, sampling=None, text=None, examples=None, plan=None)
    page = report(run)
    text = text_of(page[: page.index("Settings</h2>")])
    for word in ("generated text", "temperature", "Triangles", "held-out text:"):
        assert word not in text
    assert passages(page) == []
    result = json.loads((run / "eval-test.json").read_text())
    table, memory, last = score_lines(result)
    assert str(table.columns[0].header) == "block"
    assert memory.startswith("measured memory of one forward")
    assert last == (
        "blocks, test split, 55,555 tokens: 2.900 bits per character ± 0.004 (an upper bound; 54,321 characters)"
    )


def test_a_single_window_has_no_error(tmp_path, known):
    run = language_folders.run(tmp_path / "run", 2.9, se=float("nan"), windows=1, text=None)
    text = text_of(report(run))
    assert "2.900 bits per character: an upper bound" in text
    assert not re.search(r"\bnan\b", text.lower())
    assert score_lines(json.loads((run / "eval-test.json").read_text()))[-1].endswith(
        ": 2.900 bits per character (an upper bound; 54,321 characters)"
    )


def test_the_page_of_a_comparison_shows_bits_by_masked_share_and_texts(tmp_path, known):
    page = report(language_folders.with_runs(tmp_path / "all"))
    before = page[: page.index("One run of blocks in detail")]
    text = text_of(before)
    for part in (
        "a bound of 2.871 bits/char",
        "Likelihood bound, run by run",
        "a bar for their mean; these are upper bounds, and lower is better.",
        "The bound is an estimate from 12 masks of every window of the test split (54,321 characters, tokenizer: "
        "characters; seed 3).",
        "Text: 200 texts of each of 3 sampling seeds, generated with counts in 32 steps at temperature 0.9.",
        "Columns of text: n-gram divergence: divergence of 4-grams of characters from held-out text, bits.",
        "Two halves of held-out text have an n-gram divergence of 0.1789 bits: the floor.",
        "the blocks' shares add up to the bound",
        "The ensemble's answer is the average of its members' log-probabilities.",
        "Checkpointing: memory and time alone differ from end to end, so there is no likelihood bound of its own",
    ):
        assert part in text
    assert "accuracy" not in text.lower()
    assert not re.search(r"\bnan\b", text.lower())
    bits, beside = (label for label in labels(before) if label.startswith("Bits per masked token"))
    lines, inner = bits.removeprefix("Bits per masked token over masked share: ").split("; edges of blocks at ")
    assert inner == "0.667, 0.333"
    for (method, updates), scores in BITS.items():
        name = method if method == "end-to-end" else f"{method}, B = 3"
        ends = (
            f"{scores[0] * (0.5 + 0.5 / 12):.3g} at masked share 0.0417, {scores[0] * (0.5 + 11.5 / 12):.3g} at 0.958"
        )
        assert f"{name}; {updates:,} updates {ends}" in lines
    assert beside.startswith(
        "Bits per masked token minus end to end's over masked share: shallow, B = 3; 1,000 updates"
    )
    difference = BITS["blocks", 1000][0] - BITS["end-to-end", 1000][0]
    ends = f"{difference * (0.5 + 0.5 / 12):.3g} at masked share 0.0417, {difference * (0.5 + 11.5 / 12):.3g} at 0.958"
    assert f"blocks, B = 3; 1,000 updates {ends}" in beside
    assert passages(before) == [*EXAMPLES[:2], "A member's", *EXAMPLES[:2], *EXAMPLES[:2], *EXAMPLES[:2]]
    assert (
        "<figcaption>blocks, B = 3; 1,000 updates, seed 0: likelihood bound 2.872 bits/char; text 1</figcaption>"
        in page
    )
    assert "mdm-shakespeare: 3 blocks" in page[page.index("One run of blocks in detail") :]


def test_a_comparison_without_runs_and_samples(tmp_path):
    names = ("ngram_divergence", "distinct_2", "entropy", "repetition")
    rows = [
        dict(row, metrics={name: value for name, value in row["metrics"].items() if name not in names}) for row in ROWS
    ]
    folder = language_folders.comparison(tmp_path / "all", rows, sampling=None, text_reference=None)
    text = text_of(report(folder))
    assert "n-gram" not in text
    assert "Generated text" not in text
    assert "temperature" not in text
    assert "12 masks" in text
