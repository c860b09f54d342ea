"""`dblocks encode`: every split of an image folder as latents, in a folder that `dit-latent` trains on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diffusionblocks.data.folder import open_folder
from diffusionblocks.data.latents import encode, load_vae
from diffusionblocks.errors import InputError

SPLITS = ("train", "validation", "test")


def encode_splits(
    images: str, vae_path: str, out: Path, image_size: int, batch_size: int = 16, device: str = "cpu"
) -> Iterator[str]:
    """Encode train, validation and test, each into a folder of its own; the same call goes on after an interruption.

    Args:
        images: a folder of images, or hub:NAME (see `open_folder`).
        vae_path: folder of a diffusers AutoencoderKL.
        out: where OUT/train, OUT/validation and OUT/test are written.
        image_size: height and width that images are cropped and resized to, pixels.
        batch_size: images at a time.
        device: where to compute.

    Returns:
        A line about each split, as it is done.

    Raises:
        InputError: no training images, or what `encode` refuses; a split without images is left out, and said.
    """
    vae: Any = load_vae(vae_path)
    vae.to(device)
    channels = int(vae.config["in_channels"])
    for split in SPLITS:
        try:
            source = open_folder(images, split, image_size, channels)
        except InputError as error:
            if split == "train":
                raise
            yield f"{split}: left out ({error})"
            continue
        latents = encode(vae, source, out / split, batch_size=batch_size, name=vae_path)
        channels_of, height, width = latents.shape
        yield (
            f"{split}: {len(latents)} latents of {channels_of} x {height} x {width}, {latents.num_classes} classes, "
            f"in {out / split}"
        )
