"""The documentation: its code runs, its pictures and result pages are right, and the built site asks for nothing."""

import html.parser
import itertools
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import torch
from scipy import stats

pytest.importorskip("mkdocs")

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "hooks"))

import formulas  # noqa: E402
import pictures  # noqa: E402
import results  # noqa: E402
import settings  # noqa: E402
from mkdocs.commands.build import build  # noqa: E402
from mkdocs.config import load_config  # noqa: E402

from diffusionblocks.cli import _parser  # noqa: E402
from diffusionblocks.recipes import RunConfig  # noqa: E402

PAGES = {str(p.relative_to(DOCS)): p.read_text(encoding="utf-8") for p in sorted(DOCS.rglob("*.md"))}


def snippets(page: str) -> list[str]:
    """The python blocks of a page."""
    text = PAGES[page].replace("<!-- generated: mlp-family -->", settings.example())
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)])
def test_the_python_of_a_page_runs_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "page"}
    with torch.random.fork_rng(devices=[]):  # a page may seed the global generator
        for number, code in enumerate(snippets(page)):
            exec(compile(code, f"{page}, block {number}", "exec"), scope)
    if page == "families.md":
        assert scope["accuracy"] > 0.8
        with scope["blocks"][0].neutral():
            assert scope["blocks"][0].backbone(scope["x"]).shape == (len(scope["x"]), 10)


# Pictures


def law_mass(p_mean: float, p_std: float) -> Any:
    a, b = ((np.log(sigma) - p_mean) / p_std for sigma in (0.002, 80.0))
    return stats.truncnorm(a, b, loc=p_mean, scale=p_std)


def test_the_law_is_drawn_as_scipy_has_it():
    for axes, (p_mean, p_std) in zip(pictures.law_with_cuts().axes, ((0.3, 1.0), (-1.2, 1.2)), strict=True):
        law = law_mass(p_mean, p_std)
        sigma, density = axes.lines[0].get_data()
        np.testing.assert_allclose(density[1:-1], law.pdf(np.log(sigma))[1:-1], atol=2e-4)
        edges = [line.get_xdata()[0] for line in axes.lines[1:]]
        np.testing.assert_allclose(edges, np.exp(law.ppf([2 / 3, 1 / 3])), rtol=1e-6)
        shaded = [collection.get_paths()[0].vertices for collection in axes.collections]
        areas = [np.trapezoid(*_upper_side(corners)) for corners in shaded]
        np.testing.assert_allclose(areas, 1 / 3, atol=0.01)


def _upper_side(corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Density over log sigma of a filled area: its outline away from the axis."""
    inside = corners[corners[:, 1] > 0]
    order = np.argsort(inside[:, 0])
    return inside[order, 1], np.log(inside[order, 0])


def test_the_plan_is_drawn_where_karras_puts_it():
    axes = pictures.plan_steps().axes[0]
    drawn = sorted((float(line.get_xdata()[0]) for line in axes.lines if list(line.get_ydata()) == [2]), reverse=True)
    edges = [80.0, *np.exp(law_mass(0.3, 1.0).ppf([2 / 3, 1 / 3])), 0.002]
    wanted = [
        (hi ** (1 / 7) + k / 4 * (lo ** (1 / 7) - hi ** (1 / 7))) ** 7
        for hi, lo in itertools.pairwise(edges)
        for k in range(4)
    ]
    np.testing.assert_allclose(drawn, wanted, rtol=1e-6)


def test_the_paths_of_the_sampler_end_at_the_targets():
    axes = pictures.sampler_trajectory().axes[0]
    (targets,) = [np.stack(line.get_data(), 1) for line in axes.lines if line.get_marker() == "*"]
    paths = [line for line in axes.lines if line.get_marker() == "None" and len(line.get_xdata())]
    segments = [np.stack(line.get_data(), 1) for line in paths]
    steps = np.stack(segments).reshape(60, 12, 2, 2)  # step, path, its two ends, coordinates
    np.testing.assert_array_equal(steps[:-1, :, 1], steps[1:, :, 0])
    assert np.linalg.norm(steps[-1, :, 1, None] - targets, axis=-1).min(axis=-1).max() < 1e-6
    assert np.linalg.norm(steps[0, :, 0], axis=-1).min() > 1
    cosines = targets @ targets.T
    np.testing.assert_allclose(cosines[~np.eye(3, dtype=bool)], -0.5, atol=1e-6)


def test_z_names_the_class_where_the_picture_says():
    """Against the exact probability for equally likely classes: E over one coordinate of the K - 1 others' product."""
    axes = pictures.label_leak().axes[0]
    grid = np.linspace(-9, 9, 2001)
    for line, num_classes in zip(axes.lines[:3], (10, 100, 1000), strict=True):
        # Scores of a simplex differ by independent normals: the gap is K/(K-1), the spread sigma sqrt(K/(K-1)).
        for sigma, share in list(zip(*line.get_data(), strict=True))[::10]:
            gap = np.sqrt(num_classes / (num_classes - 1)) / sigma
            exact = np.trapezoid(stats.norm.pdf(grid) * stats.norm.cdf(grid + gap) ** (num_classes - 1), grid)
            assert abs(share - exact) < 4 * np.sqrt(exact * (1 - exact) / 2000) + 1e-3


def test_the_bars_of_memory_are_the_measured_ratios():
    ratios = json.loads((results.RESULTS / "vit-digits/layer_memory.json").read_text())["ratio_times_B"]
    drawn = [bar.get_width() for bar in pictures.memory_bars().axes[0].patches]
    kinds = results.KINDS
    assert drawn == [*(ratios["total"][k] for k in (*kinds, "peak_total")), *(ratios["layers"][k] for k in kinds)]


@pytest.mark.parametrize("name", [name for name in pictures.PICTURES if name != "training"])
def test_pictures_are_svg_in_the_colours_of_the_theme(name):
    draw = pictures.PICTURES[name].draw
    text = pictures.svg(draw)
    tree = ElementTree.fromstring(text)
    assert tree.get("viewBox")
    assert tree.get("width") is None
    assert "currentColor" in text
    assert set(re.findall(r"#[0-9a-f]{6}\b", text)) <= {"#ffffff"}
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert all(target in ids for target in re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    pictures.svg.cache_clear()
    assert pictures.svg(draw) == text


# Results


def synthetic_comparison() -> dict[str, Any]:
    """Four seeds of end-to-end, blocks, and shallow networks at N and 3 N updates; end-to-end in another order."""
    noise = np.random.default_rng(0)
    rows = []
    for method, updates, level in (
        ("end-to-end", 60, 0.95),
        ("blocks", 60, 0.9),
        ("shallow", 60, 0.8),
        ("shallow", 180, 0.955),
    ):
        seeds = [3, 1, 0, 2] if method == "end-to-end" else range(4)
        for seed in seeds:
            accuracy = level + 0.01 * float(noise.standard_normal())
            metrics = {"accuracy": accuracy, "cross_entropy": -float(np.log(accuracy))}
            if method == "blocks":
                metrics |= {"block0_accuracy": accuracy - 0.02, "chain_gain": 0.02, "average_accuracy": accuracy + 0.01}
            size = 3 if method == "end-to-end" else 1
            memory = {"weights": size * 10**6, "gradients": size * 10**6, "optimizer": 2 * size * 10**6}
            memory |= {"activations": size * 5 * 10**6, "other": 4321000}
            rows.append(
                {"method": method, "preset": "default", "num_blocks": 3, "seed": seed, "budget": "layer-evaluations"}
                | {"updates": updates, "metrics": metrics, "memory_bytes": memory, "layer_memory_bytes": memory}
                | {"step_seconds": 0.01 * size + 0.001 * seed, "samples_per_second": 100.0}
            )
    return {
        "recipe": "vit-synthetic",
        "commit": "0123abc",
        "versions": {"torch": "9.9"},
        "hardware": {"cores": 64},
        "command": "dblocks compare vit-synthetic --seeds 4",
        "rows": rows,
    }


@pytest.fixture
def comparison(tmp_path) -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """The generated page, and the rows by method and updates."""
    written = synthetic_comparison()
    (tmp_path / "vit-synthetic").mkdir()
    (tmp_path / "vit-synthetic/compare.json").write_text(json.dumps(written))
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(written["rows"], key=lambda row: row["seed"]):
        rows.setdefault(f"{row['method']} {row['updates']}", []).append(row)
    return results.page(tmp_path), rows


def tables(page: str) -> list[list[dict[str, str]]]:
    """Markdown tables as rows by column, in order."""
    found = []
    for block in re.findall(r"(?:^\|.*\n?)+", page, flags=re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.strip().splitlines()]
        names = lines[0]
        assert all(len(line) == len(names) for line in lines)
        found.append([dict(zip(names, line, strict=True)) for line in lines[2:]])
    return found


def test_scores_of_the_results_page_are_those_of_numpy_and_scipy(comparison):
    page, rows = comparison
    scores = {f"{row['method']} {row['updates']}": row for row in tables(page)[0]}
    assert scores.keys() == rows.keys()
    deep = np.array([row["metrics"]["accuracy"] for row in rows["end-to-end 60"]])
    for name, row in scores.items():
        own = np.array([row["metrics"]["accuracy"] for row in rows[name]])
        entropy = np.array([row["metrics"]["cross_entropy"] for row in rows[name]])
        assert row["n"] == "4"
        assert row["accuracy %"] == f"{100 * own.mean():.2f} ± {100 * own.std(ddof=1):.2f}"
        assert row["cross-entropy, nats"] == f"{entropy.mean():.4f} ± {entropy.std(ddof=1):.4f}"
        if name == "end-to-end 60":
            assert row["minus end to end, points"] == ""
            continue
        low, high = stats.ttest_rel(own, deep).confidence_interval(0.95)
        assert row["minus end to end, points"] == f"{100 * (own - deep).mean():+.2f}"
        assert row["95% interval"] == f"{100 * low:+.2f} to {100 * high:+.2f}"


def test_the_other_tables_of_the_results_page(comparison):
    page, rows = comparison
    _, chains, costs = tables(page)
    (chain,) = chains
    alone = 100 * np.array([row["metrics"]["block0_accuracy"] for row in rows["blocks 60"]])
    assert chain["block 0 alone %"] == f"{alone.mean():.2f} ± {alone.std(ddof=1):.2f}"
    assert chain["chain gain, points"] == "+2.00 ± 0.00"
    by_method = {row["method"]: row for row in costs}
    assert by_method["end-to-end"]["weights + gradients + optimizer, MB"] == "12.000"
    assert by_method["end-to-end"]["activations, MB"] == "15.000"
    assert by_method["blocks"]["other, MB"] == "4.321"
    assert by_method["end-to-end"]["time of an update, ms"] == "31.50"  # mean over seeds 0..3


def test_depth_is_claimed_only_beyond_two_standard_errors(comparison):
    page, rows = comparison
    verdicts = re.findall(r"^- (Yes|Not shown)\b.* had (\d+) updates", page, flags=re.MULTILINE)
    deep = np.array([row["metrics"]["accuracy"] for row in rows["end-to-end 60"]])
    wanted = []
    for updates in (60, 180):
        gaps = deep - np.array([row["metrics"]["accuracy"] for row in rows[f"shallow {updates}"]])
        wanted.append(("Yes" if gaps.mean() > 2 * stats.sem(gaps) else "Not shown", str(updates)))
    assert verdicts == wanted
    assert [answer for answer, _ in wanted] == ["Yes", "Not shown"]  # the example has both


def test_results_say_how_to_make_them_again(comparison):
    page, _ = comparison
    for part in ("    dblocks compare vit-synthetic --seeds 4", "Commit `0123abc`", "cores 64", "torch 9.9"):
        assert part in page


def test_one_seed_gives_no_interval_and_no_claim(tmp_path):
    written = synthetic_comparison()
    written["rows"] = [row for row in written["rows"] if row["seed"] == 0]
    (tmp_path / "one").mkdir()
    (tmp_path / "one/compare.json").write_text(json.dumps(written))
    page = results.page(tmp_path)
    assert all(row["accuracy %"].endswith(" ± unknown") for row in tables(page)[0])
    assert page.count("- Open (it takes two seeds)") == 2
    assert "nan" not in page


def test_committed_measurements_are_shown_as_they_are():
    page = results.page()
    published = json.loads((results.RESULTS / "published-code/digits.json").read_text())
    shown = {row["defects"]: row for table in tables(page) for row in table if "defects" in row}
    assert shown.keys() == published["table"].keys()
    for name in published["table"]:
        chains = [run[name]["chain"] for run in published["runs"]]
        assert shown[name]["accuracy %"] == f"{100 * np.mean(chains):.2f} ± {100 * np.std(chains, ddof=1):.2f}"
        gaps = [run[name]["chain"] - run["published"]["chain"] for run in published["runs"]]
        difference = f"{100 * np.mean(gaps):.2f} ± {100 * np.std(gaps, ddof=1):.2f}"
        assert shown[name]["minus `published`, points"] == difference
    assert published["commit"] in page


# The built site


class Links(html.parser.HTMLParser):
    """What a page loads, what it links to, and the anchors that it has."""

    def __init__(self, text: str):
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link":
            self.loads.append(given.get("href", ""))
        else:
            self.loads += [given[name] for name in ("src", "srcset", "poster", "data") if name in given]


def test_loads_and_links_are_told_apart():
    found = Links(
        '<link href="https://a.b/c.css"><script src="//a.b/d.js"></script><img src=e.png><a href="https://f">'
    )
    assert found.loads == ["https://a.b/c.css", "//a.b/d.js", "e.png"]
    assert found.links == ["https://f"]
    assert [bool(urlsplit(target).netloc) for target in found.loads] == [True, True, False]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        config = load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder))
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    return folder


@pytest.fixture(scope="module")
def built(site) -> dict[Path, tuple[str, Links]]:
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}
    return {path: (text, Links(text)) for path, text in texts.items()}


def test_the_site_loads_nothing_from_elsewhere(site, built):
    assert len(built) > len(PAGES)  # and the page for what is not found
    for path, (text, links) in built.items():
        assert links.loads
        for target in links.loads:
            assert not urlsplit(target).netloc, f"{path.name} loads {target}"
        for style in re.findall(r"<style.*?</style>", text, flags=re.DOTALL):
            assert not re.search(r"@import|url\(['\"]?(https?:)?//", style)
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", path.read_text(encoding="utf-8")), path


def test_no_link_inside_the_site_is_broken(site, built):
    checked = 0
    for path, (_, links) in built.items():
        if path.name == "404.html":  # its links start at the root of the server
            continue
        for target in links.links + links.loads:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            to = to / "index.html" if to.is_dir() else to
            assert to.is_file(), f"{path.relative_to(site)} links to {target}"
            if parts.fragment and to.suffix == ".html" and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in built[to][1].ids, f"{path.relative_to(site)} links to {target}"
            checked += 1
    assert checked > 500


def test_every_formula_and_picture_is_in_its_page(site, built):
    numbers, drawn = [], 0
    for path, (text, _) in built.items():
        assert "arithmatex" not in text, path
        assert "<!-- picture" not in text, path
        assert "<!-- generated" not in text, path
        assert not re.search(r"\(@[\w-]+\)", text), path
        numbers += [int(n) for n in re.findall(r'equation-number">\((\d+)\)', text)]
        drawn += text.count("<figure><svg")
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert len(numbers) > 10
    assert drawn >= len(pictures.PICTURES)
    for concept in (DOCS / "concepts").glob("*.md"):
        text, _ = built[site / "concepts" / concept.stem / "index.html"]
        assert "<figure><svg" in text, concept
        assert "<math" in text, concept


def test_a_formula_becomes_the_mathml_it_means():
    page = formulas.to_mathml(r'<div class="arithmatex">\[ a \lt b \label{less} \]</div>', {"less": 7})
    assert 'id="eq-less"' in page
    assert "(7)" in page
    tree = ElementTree.fromstring(re.search(r"<math.*</math>", page)[0])
    assert [leaf.text for leaf in tree.iter() if leaf.text] == ["a", "<", "b"]
    assert "label" not in page


def test_the_command_line_reference_has_every_command_and_setting(site, built):
    text, _ = built[site / "command-line/index.html"]
    (commands,) = [a for a in _parser()._actions if hasattr(a, "_choices_actions")]
    for name in commands.choices:
        assert f"dblocks {name}" in text
    for name in RunConfig.model_fields:
        if name not in ("recipe", "family", "format_version"):
            assert f"--{name.replace('_', '-')} X" in text


def test_the_python_reference_documents_every_public_name(site, built):
    import diffusionblocks

    text, links = built[site / "api/index.html"]
    for name in diffusionblocks.__all__:
        path = f"diffusionblocks.{diffusionblocks._HOME[name]}.{name}"
        assert path in links.ids
    assert "Raises:" in text
    for config in (diffusionblocks.BlockwiseConfig, diffusionblocks.TrainingConfig):
        assert all(f"<code>{name}</code>" in text for name in config.model_fields)
