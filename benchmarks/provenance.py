"""What every benchmark result carries: the command, the commit, the hardware and the versions that made it."""

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "numpy", "scikit-learn", "diffusionblocks")


def provenance() -> dict[str, Any]:
    """Command line, commit (with "+" if files differ from it), hardware and versions."""
    commit = _git("rev-parse", "HEAD") + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit,
        "hardware": {"processor": _processor(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {"python": platform.python_version()} | {p: importlib.metadata.version(p) for p in PACKAGES},
    }


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result with its provenance as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**provenance(), **result}, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
