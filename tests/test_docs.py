"""The documentation: its code runs, and the built site is whole and asks for nothing from elsewhere."""

import html.parser
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import formulas
import pictures
import pytest
import settings
import torch
from mkdocs.commands.build import build
from mkdocs.config import load_config

import diffusionblocks
from diffusionblocks.cli import _parser
from diffusionblocks.run_config import DitRun, VitRun

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {str(p.relative_to(DOCS)): p.read_text(encoding="utf-8") for p in sorted(DOCS.rglob("*.md"))}


def snippets(page: str) -> list[str]:
    """The python blocks of a page."""
    text = PAGES[page]
    for name in ("mlp_family", "recurrent_vit"):
        text = text.replace(f"<!-- generated: {name.replace('_', '-')} -->", settings.example(name))
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
    if page == "recurrent.md":
        assert min(scope["accuracy"].values()) > 0.5


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
    for name in VitRun.model_fields | DitRun.model_fields:
        if name not in ("recipe", "family", "format_version"):
            assert f"--{name.replace('_', '-')} X" in text


def test_the_python_reference_documents_every_public_name(site, built):
    text, links = built[site / "api/index.html"]
    for name in diffusionblocks.__all__:
        path = f"diffusionblocks.{diffusionblocks._HOME[name]}.{name}"
        assert path in links.ids
    assert "Raises:" in text
    for config in (
        diffusionblocks.VitConfig,
        diffusionblocks.DitConfig,
        diffusionblocks.MaskedLmConfig,
        diffusionblocks.TrainingConfig,
    ):
        assert all(f"<code>{name}</code>" in text for name in config.model_fields)
