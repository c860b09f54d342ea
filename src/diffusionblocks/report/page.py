"""`dblocks report`: one HTML file that needs no other and no network, of a run or of a comparison."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from diffusionblocks import checkpoint
from diffusionblocks.config import read_json
from diffusionblocks.errors import InputError
from diffusionblocks.report.causal_page import causal_page
from diffusionblocks.report.compare_page import COMPARE_FILE, compare_page
from diffusionblocks.report.generation_page import generation_page
from diffusionblocks.report.language_page import language_page
from diffusionblocks.report.run_page import run_page
from diffusionblocks.report.run_parts import settings_of
from diffusionblocks.training.data import load_split
from diffusionblocks.training.run import CONFIG_FILE, load_config


def runs_of(folder: Path, split: str | None = None) -> tuple[list[Path], str]:
    """The run folders that the report of a folder shows, and the split that it is about.

    A run shows itself, by default on the test split; a comparison shows its first run of blocks (one without a trunk if
    it can, and as near to the settings of a run end to end as can be), by default on the split that it compares.

    Raises:
        InputError: neither a run nor a comparison.
    """
    if (folder / CONFIG_FILE).is_file():
        return [folder], split or "test"
    if not (folder / COMPARE_FILE).is_file():
        raise InputError(
            "folder", str(folder), f"a run with {CONFIG_FILE} or a comparison with {COMPARE_FILE}", "make one first"
        )
    paths = sorted((folder / "runs").glob(f"*/{CONFIG_FILE}"))
    found = {path.parent: settings_of(path.parent) for path in paths}
    whole = next((settings for settings in found.values() if settings["method"] == "end-to-end"), {})

    def unlike(run_dir: Path) -> tuple[bool, int]:
        settings = found[run_dir]
        return settings["trunk"] > 0, sum(settings[name] != value for name, value in whole.items() if name in settings)

    of_blocks = sorted((run_dir for run_dir in found if found[run_dir]["method"] == "blocks"), key=unlike)
    return of_blocks[:1], split or read_json(folder / COMPARE_FILE).get("split", "test")


def read_images(run_dir: Path, split: str, data_dir: str | None) -> Any:
    """The split that a run is scored on: images, or latents.

    Raises:
        InputError: data that cannot be read, with the flag that says where they are.
    """
    config = load_config(run_dir)
    try:
        return load_split(config.located(data_dir), split)
    except InputError as error:
        todo = f"say where the data are now with --data-dir ({error.todo})"
        raise InputError(error.setting, error.value, error.expected, todo) from None


def write_report(
    folder: Path, split: str | None = None, data_dir: str | None = None, out: Path | None = None, device: str = "cpu"
) -> Path:
    """Write the report of a run or a comparison, whose runs have been evaluated on the split; returns the file.

    Raises:
        InputError: a folder that is neither, or data that cannot be read.
    """
    out = folder / "report.html" if out is None else out
    if not out.parent.is_dir():
        raise InputError("out", str(out), "a file in a folder that exists", "make the folder first")
    (run_dirs, split), is_run = runs_of(folder, split), (folder / CONFIG_FILE).is_file()
    prefix = "" if is_run else "run-"
    pages = [_page_of(path)(path, split, data_dir, prefix, device) for path in run_dirs]
    context: dict[str, Any] = {"run": pages[0] if pages else None, "compare": None if is_run else compare_page(folder)}
    environment = Environment(
        loader=PackageLoader("diffusionblocks.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    checkpoint.write_text(out, environment.get_template("template.html").render(context))
    return out


def _classification(run_dir: Path, split: str, data_dir: str | None, prefix: str, device: str) -> dict[str, Any]:
    return run_page(run_dir, split, read_images(run_dir, split, data_dir), prefix, device)


def _generation(run_dir: Path, split: str, data_dir: str | None, prefix: str, device: str) -> dict[str, Any]:
    """Everything it shows is in the run folder, so it asks for no data."""
    return generation_page(run_dir, split, prefix)


def _language(run_dir: Path, split: str, data_dir: str | None, prefix: str, device: str) -> dict[str, Any]:
    """Everything it shows is in the run folder, so it asks for no data."""
    return language_page(run_dir, split, prefix)


def _next_token(run_dir: Path, split: str, data_dir: str | None, prefix: str, device: str) -> dict[str, Any]:
    """Everything it shows is in the run folder, so it asks for no data."""
    return causal_page(run_dir, split, prefix)


PAGES: dict[str, Callable[[Path, str, str | None, str, str], dict[str, Any]]] = {
    "vit": _classification,
    "dit": _generation,
    "masked-lm": _language,
    "causal-lm": _next_token,
    "recurrent-lm": _next_token,
}
"""What makes the page of a run, by its family: (run folder, split, data folder, prefix, device) -> page."""


def _page_of(run_dir: Path) -> Callable[[Path, str, str | None, str, str], dict[str, Any]]:
    family = settings_of(run_dir).get("family", "vit")
    if family not in PAGES:
        raise InputError("family", family, f"one of {', '.join(PAGES)}", f"see {run_dir / CONFIG_FILE}")
    return PAGES[family]
