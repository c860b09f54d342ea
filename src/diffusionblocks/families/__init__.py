"""One file a family: what x, y and z are, how z enters, the loss, how to decode."""

from diffusionblocks.block import Block
from diffusionblocks.families.vit import VitBlock

FAMILIES: dict[str, type[VitBlock]] = {"vit": VitBlock}
"""The block class of each family that a config can name."""

__all__ = ["FAMILIES", "Block", "VitBlock"]
