"""The blocks of a run or of a saved model, to generate with: in memory all at once, or read from disk one by one."""

from pathlib import Path
from typing import Any

from torch import Tensor

from diffusionblocks import model as saved
from diffusionblocks.block import BlockLoader, held
from diffusionblocks.config import BlockwiseConfig
from diffusionblocks.errors import InputError
from diffusionblocks.model import BlockwiseModel, load_block, read_model
from diffusionblocks.training.run import load_config, load_trained

GENERATES = {"dit": "images", "masked-lm": "text"}


def family_in(folder: Path) -> str:
    """The family of a run or a saved model.

    Raises:
        InputError: neither.
    """
    return (read_model(folder)[0] if (folder / saved.CONFIG_FILE).exists() else load_config(folder)).family


def open_blocks(folder: Path, family: str, resident: str = "all") -> tuple[Any, list[BlockLoader]]:
    """What gives each block of a run or a saved model, with the config.

    Args:
        folder: a run, or a saved model.
        family: the family that it has to be of.
        resident: "all", or "one": each block is read when it is asked for, and kept by nobody else.

    Raises:
        InputError: neither a run nor a saved model; one of another family; "one" of a run that has no model written.
    """
    if (found := family_in(folder)) != family:
        raise InputError(
            "run", str(folder), f"a model that generates {GENERATES[family]}", f"this one is of the family {found}"
        )
    path = folder if (folder / saved.CONFIG_FILE).exists() else folder / "model"
    if not (path / saved.CONFIG_FILE).exists():
        if resident == "one":
            raise InputError("resident", "one", f"a finished run of blocks, with {path}", "train it, or take all")
        model = load_trained(folder, load_config(folder))[0]
        return model.config, held(model.block_list if isinstance(model, BlockwiseModel) else [model])
    config, targets = read_model(path)
    if resident == "all":
        return config, held(BlockwiseModel.from_pretrained(path).block_list)
    return config, [_reader(path, config, index, targets) for index in range(config.num_blocks)]


def _reader(path: Path, config: BlockwiseConfig, index: int, targets: Tensor | None) -> BlockLoader:
    return lambda: load_block(path, config, index, targets)
