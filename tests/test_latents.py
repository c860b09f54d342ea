"""Latents on the disk are what the VAE says of each image, whatever the batches, the shards and the interruptions."""

import json
import pickle
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from PIL import Image

from diffusionblocks.data import latents as latents_module
from diffusionblocks.data.folder import open_folder
from diffusionblocks.data.images import ImageSet, to_float
from diffusionblocks.data.latents import INDEX, LatentSet, decode, encode, load_vae
from diffusionblocks.errors import InputError
from diffusionblocks.randomness import keyed_generator, seeded

diffusers = pytest.importorskip("diffusers")

SMALL = {"batch_size": 3, "shard_size": 4, "show": False}


def make_vae(seed: int = 0, **changed):
    """A random VAE that halves the side and has 2 latent channels."""
    settings = {
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "block_out_channels": (8, 8),
        "norm_num_groups": 4,
        "latent_channels": 2,
        "sample_size": 8,
        "scaling_factor": 0.7,
    }
    with seeded("cpu", seed, "test VAE"):
        return diffusers.AutoencoderKL(**{**settings, **changed}).eval()


@pytest.fixture(scope="module")
def vae():
    return make_vae()


@pytest.fixture(scope="module")
def images() -> ImageSet:
    pixels = torch.randint(0, 256, (10, 3, 8, 8), generator=keyed_generator(0, "pixels"), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(10) * 7 % 3, ("a", "b", "c"))


def means(vae, images: ImageSet) -> torch.Tensor:
    """The posterior means of all images at once, unscaled."""
    with torch.no_grad():
        return vae.encode(images.images.float() / 127.5 - 1).latent_dist.mode()


def refused(fragment: str, call, *arguments, **keywords) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments, **keywords)
    line = str(caught.value)
    assert fragment in line
    assert "\n" not in line
    return line


def shard_sizes(folder: Path) -> list[int]:
    files = sorted(folder.glob("*.safetensors"))
    return [len(safetensors.torch.load_file(file)["labels"]) for file in files]


# ---------------------------------------------------------------- encode and read


@pytest.mark.parametrize("sizes", [(3, 4), (64, 8192), (4, 5), (1, 10), (5, 3)])
def test_latents_are_the_scaled_means(tmp_path, vae, images, sizes):
    batch_size, shard_size = sizes
    latents = encode(vae, images, tmp_path / "out", batch_size=batch_size, shard_size=shard_size, show=False)
    wanted = means(vae, images) * 0.7
    assert len(latents) == 10
    assert latents.shape == (2, 4, 4)
    assert (latents.classes, latents.num_classes) == (("a", "b", "c"), 3)
    assert torch.equal(latents.labels, images.labels)
    assert latents.labels.dtype == torch.int64
    rows = latents.rows(torch.arange(10))
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows, wanted, rtol=1e-4, atol=1e-5)
    full, rest = divmod(10, shard_size)
    assert shard_sizes(tmp_path / "out") == [shard_size] * full + [rest] * bool(rest)


def test_rows_keep_the_order_asked_for(tmp_path, vae, images):
    latents = encode(vae, images, tmp_path, **SMALL)
    everything = latents.rows(torch.arange(10))
    for index in ([9, 0, 4, 3, 4, 8, 7], [3], [4], list(range(9, -1, -1)), []):
        assert torch.equal(latents.rows(torch.tensor(index, dtype=torch.int64)), everything[index])
    first = latents.rows(torch.tensor([0]))
    first += 1
    assert torch.equal(latents.rows(torch.tensor([0])), everything[:1])
    copied = pickle.loads(pickle.dumps(latents))
    assert torch.equal(copied.rows(torch.tensor([9, 2])), everything[[9, 2]])
    for row in (10, -1):
        refused(f"index={row}", latents.rows, torch.tensor([0, row]))


def test_shift_factor_comes_off_before_scaling(tmp_path, images):
    shifted = make_vae(shift_factor=0.3, scaling_factor=2.0)
    latents = encode(shifted, images, tmp_path, **SMALL)
    wanted = (means(shifted, images) - 0.3) * 2.0
    torch.testing.assert_close(latents.rows(torch.arange(10)), wanted, rtol=1e-4, atol=1e-5)
    assert (latents.index.scaling_factor, latents.index.shift_factor) == (2.0, 0.3)


@pytest.mark.parametrize("shift", [None, 0.3])
def test_decode_undoes_the_scaling(tmp_path, images, shift):
    model = make_vae(shift_factor=shift)
    latents = encode(model, images, tmp_path, **SMALL)
    decoded = decode(model, latents.rows(torch.arange(10)), batch_size=4)
    assert (decoded.dtype, decoded.shape) == (torch.uint8, (10, 3, 8, 8))
    with torch.no_grad():
        wanted = model.decode(means(model, images)).sample
    wanted = ((wanted.clamp(-1, 1) + 1) * 127.5).round()
    assert bool((decoded.float() - wanted).abs().max() <= 1)
    assert bool(wanted.std() > 1)


def test_decode_refuses_other_channels(vae):
    refused("latents.shape=(1, 3, 4, 4)", decode, vae, torch.zeros(1, 3, 4, 4))
    refused("NaN", decode, vae, torch.full((1, 2, 4, 4), torch.nan))


def test_the_index_says_what_the_files_are(tmp_path, vae, images):
    import hashlib

    encode(vae, images, tmp_path, name="my-vae", **SMALL)
    index = json.loads((tmp_path / INDEX).read_text())
    assert [(shard["name"], shard["count"]) for shard in index["shards"]] == [
        ("latents-00000.safetensors", 4),
        ("latents-00001.safetensors", 4),
        ("latents-00002.safetensors", 2),
    ]
    for shard in index["shards"]:
        assert shard["sha256"] == hashlib.sha256((tmp_path / shard["name"]).read_bytes()).hexdigest()
    assert (index["count"], index["shape"], index["image_size"]) == (10, [2, 4, 4], 8)
    assert (index["vae"], index["format_version"], index["scaling_factor"]) == ("my-vae", 1, 0.7)
    assert (index["classes"], index["shift_factor"]) == (["a", "b", "c"], None)
    assert {path.name for path in tmp_path.iterdir()} == {INDEX, *(shard["name"] for shard in index["shards"])}


def test_a_folder_is_encoded_without_being_loaded(tmp_path, vae, images, monkeypatch):
    for k, pixels in enumerate(images.images):
        path = tmp_path / "in" / images.classes[int(images.labels[k])] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)
    source = open_folder(str(tmp_path / "in"), "train", 8, 3)
    asked = []
    read = type(source.items).read

    def counted(self, row: int, size: int, channels: int) -> torch.Tensor:
        asked.append(row)
        return read(self, row, size, channels)

    monkeypatch.setattr(type(source.items), "read", counted)
    latents = encode(vae, source, tmp_path / "out" / "train", **SMALL)
    assert sorted(asked) == list(range(10))
    monkeypatch.undo()
    loaded = source.load()
    torch.testing.assert_close(latents.rows(torch.arange(10)), means(vae, loaded) * 0.7, rtol=1e-4, atol=1e-5)
    assert torch.equal(latents.labels, loaded.labels)


def test_a_vae_in_half_precision_gives_float32(tmp_path, images):
    half = make_vae().to(torch.bfloat16)
    latents = encode(half, images, tmp_path, **SMALL)
    with torch.no_grad():
        wanted = half.encode(to_float(images.images).bfloat16()).latent_dist.mode().float() * 0.7
    torch.testing.assert_close(latents.rows(torch.arange(10)), wanted, rtol=0.05, atol=0.05)
    assert decode(half, latents.rows(torch.arange(2))).shape == (2, 3, 8, 8)


# ---------------------------------------------------------------- interruptions


def killed_after(monkeypatch, batches: int) -> list[int]:
    """Lets the first batches through, then stops the process's work; returns the rows encoded, as they come."""
    original, seen = latents_module._encode_batch, []

    def encode_batch(vae, images, rows):
        if len(seen) == batches:
            raise KeyboardInterrupt
        seen.append(rows.tolist())
        return original(vae, images, rows)

    monkeypatch.setattr(latents_module, "_encode_batch", encode_batch)
    return seen


def test_a_killed_encoding_is_not_read_and_goes_on(tmp_path, vae, images, monkeypatch):
    whole = encode(vae, images, tmp_path / "whole", **SMALL)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        killed_after(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            encode(vae, images, out, **SMALL)
    assert shard_sizes(out) == [4]
    refused(INDEX, LatentSet, out)
    (out / ".latents-00001.safetensors.draft").write_bytes(b"half")
    (out / "latents-00001.safetensors").write_bytes((out / "latents-00000.safetensors").read_bytes()[:-7])
    with monkeypatch.context() as patch:
        seen = killed_after(patch, 99)
        resumed = encode(vae, images, out, **SMALL)
    assert seen == [[4, 5, 6], [7], [8, 9]]
    assert torch.equal(resumed.rows(torch.arange(10)), whole.rows(torch.arange(10)))
    assert not list(out.glob(".*"))
    assert (out / INDEX).read_text() == (tmp_path / "whole" / INDEX).read_text()
    with monkeypatch.context() as patch:
        assert killed_after(patch, 0) == []
        encode(vae, images, out, **SMALL)
    (out / "latents-00002.safetensors").unlink()
    with monkeypatch.context() as patch:
        killed_after(patch, 0)
        with pytest.raises(KeyboardInterrupt):
            encode(vae, images, out, **SMALL)
    refused("was interrupted", LatentSet, out)


def test_shards_of_something_else_are_refused(tmp_path, vae, images):
    encode(vae, images, tmp_path, **SMALL)
    before = (tmp_path / "latents-00000.safetensors").read_bytes()
    other = ImageSet(images.images.flip(0), images.labels, images.classes)
    for model, data, sizes in (
        (make_vae(1), images, SMALL),
        (make_vae(scaling_factor=0.8), images, SMALL),
        (vae, other, SMALL),
        (vae, images.subset(range(9)), SMALL),
        (vae, images, {**SMALL, "shard_size": 5}),
    ):
        assert "take another folder" in refused("out=", encode, model, data, tmp_path, **sizes)
    assert (tmp_path / "latents-00000.safetensors").read_bytes() == before
    encode(vae, images, tmp_path, **{**SMALL, "batch_size": 2})


def test_what_cannot_be_encoded(tmp_path, vae, images):
    grey = ImageSet(images.images[:, :1], images.labels, images.classes)
    refused("num_channels=1: expected 3", encode, vae, grey, tmp_path / "a", **SMALL)
    odd = ImageSet(images.images[..., :7, :7], images.labels, images.classes)
    refused("image_size=7: expected a multiple of 2", encode, vae, odd, tmp_path / "a", **SMALL)
    refused("batch_size=0", encode, vae, images, tmp_path / "a", batch_size=0)
    refused("shard_size=0", encode, vae, images, tmp_path / "a", shard_size=0)
    assert not (tmp_path / "a").exists()
    broken = make_vae()
    with torch.no_grad():
        broken.quant_conv.weight[0] = torch.inf
    refused("latent of image 0='not finite'", encode, broken, images, tmp_path / "b", **SMALL)


# ---------------------------------------------------------------- damaged folders


def test_damage_is_found_on_opening(tmp_path, vae, images):
    encode(vae, images, tmp_path, **SMALL)
    path, shard = tmp_path / INDEX, tmp_path / "latents-00001.safetensors"
    text, data = path.read_text(), shard.read_bytes()
    good = json.loads(text)

    def with_shard(**changed):
        return {**good, "shards": [{**good["shards"][0], **changed}, *good["shards"][1:]]}

    for index, fragment in [
        ({**good, "count": 11}, "count=11: expected 10"),
        ({**good, "shape": [2, 4, 5]}, "[4, 2, 4, 5]"),
        ({**good, "classes": ["a", "b"]}, "a label in 0..1"),
        ({**good, "format_version": 2}, "format_version=2"),
        ({**good, "unknown": 2}, "unknown=2"),
        (with_shard(name="../latents-00000.safetensors"), "plain file name"),
        (with_shard(name="/etc/passwd"), "plain file name"),
        (with_shard(name="none.safetensors"), "none.safetensors"),
        ([], "latents.json"),
    ]:
        path.write_text(json.dumps(index))
        refused(fragment, LatentSet, tmp_path)
    two = [{**good["shards"][0], "count": 5}, {**good["shards"][1], "count": 3}, good["shards"][2]]
    path.write_text(json.dumps({**good, "shards": two}))
    refused("latents-00000.safetensors", LatentSet, tmp_path)
    path.write_text(text[:-5])
    refused("valid JSON", LatentSet, tmp_path)
    path.write_text(text)
    shard.write_bytes(data[:-1])
    refused(shard.name, LatentSet, tmp_path)
    safetensors.torch.save_file({"latents": torch.zeros(4, 2, 4, 4).half(), "labels": torch.zeros(4).long()}, shard)
    refused(shard.name, LatentSet, tmp_path)
    encode(make_vae(1), images, tmp_path / "other", **SMALL)
    shard.write_bytes((tmp_path / "other" / shard.name).read_bytes())
    refused("a shard of the encoding in latents.json", LatentSet, tmp_path)
    shard.unlink()
    refused(shard.name, LatentSet, tmp_path)
    shard.write_bytes(data)
    LatentSet(tmp_path).check_files()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refused(shard.name, LatentSet(tmp_path).check_files)


# ---------------------------------------------------------------- the VAE's folder


def test_load_vae(tmp_path, vae, images):
    vae.save_pretrained(tmp_path / "vae")
    loaded = load_vae(tmp_path / "vae")
    assert not loaded.training
    assert torch.equal(means(loaded, images), means(vae, images))
    latents = encode(loaded, images, tmp_path / "out", **SMALL)
    assert latents.index.vae == str(tmp_path / "vae")
    # The same weights by another name are the same VAE.
    encode(vae, images, tmp_path / "out", **SMALL)


def test_load_vae_refuses(tmp_path, vae, monkeypatch):
    refused("absent", load_vae, tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    refused("empty", load_vae, tmp_path / "empty")
    vae.save_pretrained(tmp_path / "pickled", safe_serialization=False)
    refused("in safetensors", load_vae, tmp_path / "pickled")
    vae.save_pretrained(tmp_path / "cut")
    weights = tmp_path / "cut" / "diffusion_pytorch_model.safetensors"
    tensors = safetensors.torch.load_file(weights)
    safetensors.torch.save_file({k: t for k, t in tensors.items() if k != "decoder.conv_in.bias"}, weights)
    refused("decoder.conv_in.bias", load_vae, tmp_path / "cut")
    weights.write_bytes(b"nothing")
    refused("cut", load_vae, tmp_path / "cut")
    for name in [name for name in sys.modules if name.split(".")[0] == "diffusers"]:
        monkeypatch.setitem(sys.modules, name, None)
    refused("pip install 'diffusionblocks[images]'", load_vae, tmp_path / "cut")


def test_opening_needs_no_diffusers(tmp_path, vae, images, monkeypatch):
    encode(vae, images, tmp_path, **SMALL)
    for name in [name for name in sys.modules if name.split(".")[0] == "diffusers"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert len(LatentSet(tmp_path).rows(torch.tensor([9, 1]))) == 2
