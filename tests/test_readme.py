"""The README's code runs as it stands, and the demo and the recipe behind it do what they say."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch

from diffusionblocks.cli import main

ROOT = Path(__file__).parent.parent
SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = SNIPPETS
    assert len(first.strip().splitlines()) < 15
    scope: dict = {}
    exec(first, scope)
    torch.testing.assert_close(scope["probabilities"].sum(-1), torch.ones(512))
    scope["optimizer"] = torch.optim.SGD(scope["model"].blocks[1].parameters(), lr=0.1)
    exec(second, scope)


def test_the_tree_of_the_readme_names_every_file():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for folder in ("src/diffusionblocks", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name not in ("__init__.py", "__main__.py"):
                relative = path.relative_to(ROOT / folder if folder.startswith("src") else ROOT)
                assert re.search(rf"^ +{re.escape(str(relative))} +\S", text, flags=re.MULTILINE), path


@pytest.mark.slow
def test_the_demo_ends_with_the_table_and_the_report(tmp_path):
    command = ["make", "demo", f"DEMO=--updates 40 --out {tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "blocks, B = 3" in done.stdout
    assert "chain gain, points" in done.stdout
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_the_digits_recipe_learns(tmp_path):
    """Well above what under-trained or leaking blocks reach, on the validation split."""
    assert main(["train", "vit-digits", "--run", str(tmp_path)]) == 0
    assert main(["eval", str(tmp_path), "--split", "validation"]) == 0
    result = json.loads((tmp_path / "eval-validation.json").read_text())
    assert result["accuracy"] > 0.93
    assert result["blocks"][0]["alone"]["accuracy"] > 0.9
    assert all(row["scrambled"]["accuracy"] < 0.3 for row in result["blocks"])
