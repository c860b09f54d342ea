"""Tables of settings and names, read from the library; and the worked example."""

from pathlib import Path

from pydantic import BaseModel

import diffusionblocks
from diffusionblocks.block import edges_of, plan_of
from diffusionblocks.config import BlockwiseConfig, VitConfig
from diffusionblocks.presets import PAPER


def configs(num_blocks: int = 3) -> dict[str, BlockwiseConfig]:
    """Both presets with this number of blocks."""
    paper = {**PAPER["vit"], "num_sampling_steps": max(num_blocks, PAPER["vit"]["num_sampling_steps"])}
    return {
        "default": VitConfig(num_blocks=num_blocks),
        "paper": VitConfig(num_blocks=num_blocks, **paper),
    }


def presets() -> str:
    """The settings in which the presets differ."""
    ours, theirs = (config.model_dump() for config in configs().values())
    rows = ["| setting | what it is | default | paper |", "|---|---|---|---|"]
    for name, field in VitConfig.model_fields.items():
        if ours[name] != theirs[name]:
            rows.append(f"| `{name}` | {field.description} | {_value(ours[name])} | {_value(theirs[name])} |")
    return "\n".join(rows)


def edges() -> str:
    """The edges of the blocks' noise ranges for both presets."""
    rows = ["| preset | B | edges of sigma, noisiest first |", "|---|---|---|"]
    for num_blocks in (2, 3, 4):
        for name, config in configs(num_blocks).items():
            levels = ", ".join(f"{edge:.4g}" for edge in edges_of(config))
            rows.append(f"| {name} | {num_blocks} | {levels} |")
    return "\n".join(rows)


def plan() -> str:
    """The stored plans of both presets in words."""
    return "\n".join(f"- `{name}`, B = 3: {plan_of(config).describe()}" for name, config in configs().items())


def public_names() -> str:
    """A directive a public name, at the module that defines it; the fields of a config with it."""
    parts = []
    for name in diffusionblocks.__all__:
        parts.append(f"::: diffusionblocks.{diffusionblocks._HOME[name]}.{name}")
        if name in (
            "VitConfig",
            "DitConfig",
            "MaskedLmConfig",
            "CausalLmConfig",
            "RecurrentLmConfig",
            "TrainingConfig",
        ):
            parts.append(_fields(getattr(diffusionblocks, name)))
    return "\n\n".join(parts)


def example(name: str = "mlp_family") -> str:
    """A file of docs/examples as a code block."""
    path = Path(__file__).parents[1] / "examples" / f"{name}.py"
    return f"```python\n{path.read_text(encoding='utf-8')}```"


def _fields(config: type[BaseModel]) -> str:
    rows = ["| setting | what it is | default |", "|---|---|---|"]
    for name, field in config.model_fields.items():
        rows.append(f"| `{name}` | {field.description or ''} | {_value(field.default)} |")
    return "\n".join(rows)


def _value(value: object) -> str:
    return "not set" if value is None else f"{value}"
