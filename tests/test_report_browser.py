"""The report as a browser shows it: light and dark, on a phone and on a wide screen, whole and legible."""

import os
import shutil

import dit_folders
import language_folders
import pytest
from report_folders import ROWS, compare, foresee, train

from diffusionblocks.cli import main

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None and "CI" not in os.environ, reason="chromium is not installed")

SECTIONS = ["Noise law and its cut", "Training loss", "Accuracy along the chain", "Oracle gap and scrambled images"]
SECTIONS += ["Memory of one update", "Samples", "Settings", "How to reproduce"]
OF_GENERATION = ["Noise law and its cut", "Training loss", "Denoising error", "Memory of one update", "Samples"]
OF_GENERATION += ["Settings", "How to reproduce"]
OF_LANGUAGE = ["Noise law and its cut", "Training loss", "Bits per masked token", "Memory of one update"]
OF_LANGUAGE += ["Bits per character by block", "Metrics of generated text", "Generated text"]
OF_LANGUAGE += ["Settings", "How to reproduce"]
IMAGES = {"blocks": 12, "control": 12, "comparison": 12, "generators": 10, "language": 0, "language models": 0}
"""Samples with their answers; or grids of samples, of every method and of one run in detail."""
OF_COMPARISON = ["All methods", "Accuracy, run by run", "Memory of one update", "How it was made"]

AUDIT = """() => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const channels = colour => colour.match(/[0-9.]+/g).map(Number);
  const luminance = colour => channels(colour).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const background = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor, parts = channels(colour);
      if (parts.length < 4 || parts[3] > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = {small: [], pale: [], texts: 0, svgTexts: 0};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, words = walker.currentNode.textContent.trim();
    if (!words || !element.getClientRects().length || element.closest("style, script")) continue;
    const style = getComputedStyle(element), inSvg = element instanceof SVGElement;
    const matrix = inSvg ? element.getScreenCTM() : null;
    const size = parseFloat(style.fontSize) * (inSvg ? Math.hypot(matrix.a, matrix.b) : 1);
    const ratio = contrast(inSvg ? style.fill : style.color, background(element));
    found.texts += 1;
    found.svgTexts += inSvg;
    if (size < 11) found.small.push([words, size]);
    if (ratio < 4.5) found.pale.push([words, ratio]);
  }
  const root = getComputedStyle(document.documentElement);
  const shown = variable => {  // a variable as the browser computes it
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = root.getPropertyValue(variable);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
  };
  const images = [...document.images];
  return {
    ...found,
    series: [0, 1, 2, 3, 4].map(k => contrast(shown(`--series-${k}`), shown("--paper"))),
    images: images.length,
    broken: images.filter(i => !i.complete || i.naturalWidth === 0 || !i.alt).length,
    sideways: document.documentElement.scrollWidth - window.innerWidth,
    headings: [...document.querySelectorAll("h2")].map(h => h.textContent),
    inner: [...document.querySelectorAll("h3")].map(h => h.textContent),
    paper: luminance(getComputedStyle(document.body).backgroundColor),
  };
}"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The report of a run of blocks, of a control, of comparisons, and of language models."""
    root = tmp_path_factory.mktemp("reports")
    with pytest.MonkeyPatch.context() as monkeypatch:
        foresee(monkeypatch)
        runs = train(root / "digits"), train(root / "whole", "--method", "end-to-end")
        for run in runs:
            assert main(["report", str(run)]) == 0
        folder = compare(root / "all", ROWS, *runs)
        generators = dit_folders.with_runs(root / "generators")
        assert main(["report", str(folder)]) == 0
        language = language_folders.run(root / "language", 2.9)
        models = language_folders.with_runs(root / "language-models")
        for run in (language, models):
            assert main(["report", str(run)]) == 0
        dit_folders.foresee(monkeypatch)
        assert main(["report", str(generators)]) == 0
    folders = {"blocks": runs[0], "control": runs[1], "comparison": folder, "generators": generators}
    folders |= {"language": language, "language models": models}
    return {kind: folder / "report.html" for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    assert CHROMIUM is not None, "chromium is not installed"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def look(browser, scheme, width, address=None, content=None):
    """Open a page and return what the audit finds, the complaints of the browser, and what it asked for."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url[:80]}"))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address) if address else page.set_content(content)
    found = page.evaluate(AUDIT)
    page.close()
    return found, complaints, [url for url in requests if not url.startswith("data:")]


@pytest.mark.parametrize("width", [320, 400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", list(IMAGES))
def test_the_page_is_whole_and_legible(browser, reports, kind, scheme, width):
    address = reports[kind].as_uri()
    found, complaints, requests = look(browser, scheme, width, address)
    assert complaints == []
    assert requests == [address], "nothing but the file itself"
    assert found["small"] == []
    assert found["pale"] == []
    assert min(found["series"]) >= 3
    assert found["texts"] > 100
    assert found["svgTexts"] > 10
    assert found["images"] == IMAGES[kind]
    assert found["broken"] == 0
    assert found["sideways"] <= 0
    assert (found["paper"] > 0.9) if scheme == "light" else (found["paper"] < 0.05)
    if kind == "blocks":
        assert found["headings"] == SECTIONS
    elif kind == "comparison":
        assert [name for name in found["headings"] if name in OF_COMPARISON] == OF_COMPARISON
        assert found["inner"] == SECTIONS
    elif kind == "generators":
        assert found["inner"] == OF_GENERATION
    elif kind == "language":
        assert found["headings"] == OF_LANGUAGE
    elif kind == "language models":
        assert found["inner"] == OF_LANGUAGE


def test_the_audit_sees_what_it_looks_for(browser):
    bad = """<body style="background: white"><p style="font-size: 10px">small</p><p style="color: #999">pale</p>
    <svg width="100" height="100" viewBox="0 0 200 200">
    <text y="20" style="font-size: 12px" fill="#999">shrunk</text></svg>
    <div style="width: 3000px">wide</div><img alt="x" src="data:image/png;base64,AAAA">
    <script>console.error("complaint"); fetch("http://localhost:9/x").catch(() => 0)</script>"""
    found, complaints, requests = look(browser, "light", 400, content=bad)
    assert [words for words, _ in found["small"]] == ["small", "shrunk"]
    assert [words for words, _ in found["pale"]] == ["pale", "shrunk"]
    assert found["broken"] == 1
    assert found["sideways"] > 2000
    assert "complaint" in complaints
    assert "http://localhost:9/x" in requests
