"""The reading order is the import order: a lower line never imports a higher one."""

import ast
from pathlib import Path

import diffusionblocks

ROOT = Path(diffusionblocks.__file__).parent

ORDER = (
    "errors",
    "arguments",
    "marks",
    "provenance",
    "randomness",
    "noise",
    "partition",
    "precondition",
    "sampling",
    "targets",
    "config",
    "presets",
    "conditioning",
    "recurrence",
    "backbones",
    "block",
    "families",
    "checkpoint",
    "model",
    "conversion",
    "memory",
    "data",
    "training.config",
    "run_config",
    "text_recipes",
    "recipes",
    "training",
    "planner",
    "evaluation",
    "comparison",
    "scoring",
    "compare",
    "report",
    "commands",
    "sampling_commands",
    "cli",
    "__main__",
)


def level(module: str) -> int:
    """The line of ORDER that a module is on; the longest name that fits."""
    fits = [k for k, name in enumerate(ORDER) if module == name or module.startswith(name + ".")]
    assert fits, f"{module} has no place in the reading order"
    return max(fits, key=lambda k: len(ORDER[k]))


def imports(path: Path) -> set[str]:
    """Modules of the package that a file imports, at its top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("diffusionblocks"):
            base = node.module.removeprefix("diffusionblocks").lstrip(".")
            for alias in node.names:
                inner = ".".join(filter(None, [base, alias.name]))
                is_module = (ROOT / (inner.replace(".", "/") + ".py")).exists()
                found.add(inner if is_module else base)
    return found - {""}


def test_a_lower_line_never_imports_a_higher_one():
    checked = 0
    for path in ROOT.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if module == "__init__":
            continue
        for other in imports(path):
            checked += 1
            assert level(other) <= level(module), f"{module} imports {other}, which is further up"
    assert checked > 50


def test_files_are_short_enough_to_read():
    for path in ROOT.rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path
