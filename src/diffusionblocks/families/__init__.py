"""One file a family: what x, y and z are, how z enters, the loss, how to decode."""

import importlib
from typing import Any

from diffusionblocks.block import Block
from diffusionblocks.errors import InputError

FAMILIES = {
    "vit": ("vit", "VitBlock", "transformers"),
    "dit": ("dit", "DitBlock", "diffusers"),
    "masked-lm": ("masked_lm", "MaskedLmBlock", "transformers"),
    "causal-lm": ("causal_lm", "CausalLmBlock", "transformers"),
    "recurrent-lm": ("recurrent_lm", "RecurrentLmBlock", "transformers"),
}
"""Of each family that a config can name: its file, its block class, and the package that its networks are from."""


def block_class_of(family: str) -> type[Any]:
    """The block class of a family; its file is imported when it is asked for, since its package is large.

    Raises:
        InputError: the package is not installed.
    """
    module, name, package = FAMILIES[family]
    try:
        return getattr(importlib.import_module(f"diffusionblocks.families.{module}"), name)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        install = "pip install 'diffusionblocks[images]'"
        raise InputError("family", family, f"the package {package}, which is not installed", install) from None


__all__ = ["FAMILIES", "Block", "block_class_of"]
