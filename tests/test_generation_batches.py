"""Batches for generation: labels in, images or latents out, with the flips that classification sees."""

import pytest
import torch

from diffusionblocks.data.batches import BlockBatches, GenerationBatches, ImageBatches, LatentBatches
from diffusionblocks.data.images import ImageSet, to_float, to_uint8
from diffusionblocks.data.latents import encode
from diffusionblocks.errors import InputError
from diffusionblocks.randomness import keyed_generator, seeded

ROWS = [(0, 5), (0, 2), (3, 2), (1, 0), (2, 2), (4, 2), (5, 2)]


@pytest.fixture
def images() -> ImageSet:
    pixels = torch.randint(0, 256, (6, 3, 8, 8), generator=keyed_generator(0, "pixels"), dtype=torch.uint8)
    return ImageSet(pixels, torch.tensor([2, 0, 1, 1, 0, 2]), ("a", "b", "c"))


def test_images_and_labels(images):
    labels, targets = GenerationBatches(images).batch(ROWS, 0, 1)
    index = [index for _, index in ROWS]
    assert torch.equal(labels, images.labels[index])
    assert torch.equal(targets, to_float(images.images[index]))
    assert len(GenerationBatches(images)) == 6


def test_flips_are_those_of_image_batches(images):
    seen = []
    for seed, block in ((0, 0), (0, 1), (1, 0)):
        labels, targets = GenerationBatches(images, flip=True).batch(ROWS, seed, block)
        inputs, wanted = ImageBatches(images, flip=True).batch(ROWS, seed, block)
        assert torch.equal(targets, inputs)
        assert torch.equal(labels, wanted)
        plain = to_float(images.images[[index for _, index in ROWS]])
        flipped = [torch.equal(a, b.flip(-1)) for a, b in zip(targets, plain, strict=True)]
        assert all(flip or torch.equal(a, b) for flip, a, b in zip(flipped, targets, plain, strict=True))
        seen.append(flipped)
    assert any(map(any, seen))
    assert not all(map(all, seen))
    assert len({tuple(flips) for flips in seen}) > 1


def test_latents_and_labels(tmp_path, images):
    diffusers = pytest.importorskip("diffusers")
    with seeded("cpu", 0, "test VAE"):
        vae = diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=2).eval()
    latents = encode(vae, images, tmp_path, batch_size=2, shard_size=4, show=False)
    labels, targets = LatentBatches(latents).batch(ROWS, 0, 1)
    index = torch.tensor([index for _, index in ROWS])
    assert torch.equal(labels, images.labels[index])
    assert torch.equal(targets, latents.rows(index))
    assert len(LatentBatches(latents)) == 6
    alone = [BlockBatches(LatentBatches(latents), 4, seed=0, block=0)[k] for k in range(4)]
    loader = torch.utils.data.DataLoader(
        BlockBatches(LatentBatches(latents), 4, seed=0, block=0), batch_size=None, sampler=range(4), num_workers=1
    )
    for (labels, targets), (wanted, latent) in zip(loader, alone, strict=True):
        assert torch.equal(labels, wanted)
        assert torch.equal(targets, latent)


def test_to_uint8_undoes_to_float():
    values = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_uint8(to_float(values)), values)
    assert to_uint8(torch.tensor([-3.0, 1.2, 0.0], dtype=torch.float64)).tolist() == [0, 255, 128]
    for bad in (values, torch.tensor([torch.nan])):
        with pytest.raises(InputError, match="images"):
            to_uint8(bad)
