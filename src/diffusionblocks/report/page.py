"""`dblocks report`: one HTML file that needs no other and no network, of a run or of a comparison."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from diffusionblocks import checkpoint
from diffusionblocks.config import read_json
from diffusionblocks.data.images import ImageSet
from diffusionblocks.errors import InputError
from diffusionblocks.report.compare_page import COMPARE_FILE, compare_page
from diffusionblocks.report.run_page import run_page
from diffusionblocks.training.data import load_split
from diffusionblocks.training.run import CONFIG_FILE, load_config


def runs_of(folder: Path, split: str | None = None) -> tuple[list[Path], str]:
    """The run folders that the report of a folder shows, and the split that it is about.

    A run shows itself, by default on the test split; a comparison shows its first run of blocks (one without a trunk if
    it can), by default on the split that it compares.

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
    of_blocks = [path.parent for path in paths if load_config(path.parent).method == "blocks"]
    of_blocks.sort(key=lambda run_dir: load_config(run_dir).trunk > 0)
    return of_blocks[:1], split or read_json(folder / COMPARE_FILE).get("split", "test")


def read_images(run_dir: Path, split: str, data_dir: str | None) -> ImageSet:
    """The split that a run is scored on.

    Raises:
        InputError: data that cannot be read, with the flag that says where they are.
    """
    config = load_config(run_dir)
    try:
        return load_split(config if data_dir is None else config.model_copy(update={"data_dir": data_dir}), split)
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
    pages = [run_page(path, split, read_images(path, split, data_dir), prefix, device) for path in run_dirs]
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
