"""What every result carries: the command, the commit, the hardware and the versions that made it."""

import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "numpy", "scikit-learn", "diffusionblocks")
EXTRAS = {"diffusers": "diffusers", "torchmetrics": "torchmetrics", "mauve-text": "mauve", "gguf": "gguf"}
"""Packages of the extras that results depend on, and what each is imported as; named where they are installed."""


def provenance() -> dict[str, Any]:
    """Command line, commit of this library, hardware and versions.

    The commit has a "+" if files differ from it, and is empty where the library is not run from its repository.
    """
    program = "dblocks" if Path(sys.argv[0]).name == "dblocks" else f"python {sys.argv[0]}"
    return {
        "command": shlex.join([*program.split(" ", 1), *sys.argv[1:]]),
        "commit": _commit(),
        "hardware": {"processor": _processor(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {"python": platform.python_version(), **_versions()},
    }


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result with its provenance as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**provenance(), **result}, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")


def _versions() -> dict[str, str]:
    installed = [package for package, module in EXTRAS.items() if importlib.util.find_spec(module) is not None]
    return {package: importlib.metadata.version(package) for package in (*PACKAGES, *installed)}


def _commit() -> str:
    # An installed copy may lie inside some other repository, whose commit would say nothing.
    if not _git("ls-files", Path(__file__).name):
        return ""
    return _git("rev-parse", "HEAD") + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # no git
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
