"""Latents of a VAE on the disk: images are encoded once, into shards, and training reads the rows it needs.

A folder holds latents-00000.safetensors, latents-00001.safetensors, ... and latents.json, which is written last: a
folder without it is not whole. A latent is what the network is to learn: the mean of the VAE's posterior, less its
shift_factor if it has one, times its scaling_factor.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from rich.console import Console
from rich.progress import Progress
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diffusionblocks.checkpoint import digest, flush_to_disk, plain_name, write_text
from diffusionblocks.config import read_json, validate
from diffusionblocks.data.images import check_labels, to_float, to_uint8
from diffusionblocks.data.lazy import ImageSource
from diffusionblocks.errors import InputError

if TYPE_CHECKING:
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

INDEX = "latents.json"


class Shard(BaseModel):
    """One file of latents."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="plain name of the file")
    count: int = Field(ge=1, description="number of its rows")
    sha256: str = Field(description="checksum of the file")


class LatentIndex(BaseModel):
    """What latents.json says."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format_version: Literal[1] = 1
    key: str = Field(description="hash of the VAE, the images and the size of the shards")
    classes: tuple[str, ...] = Field(min_length=1, description="names of the classes")
    count: int = Field(ge=1, description="number of latents")
    shape: tuple[int, int, int] = Field(description="channels, height and width of a latent")
    image_size: int = Field(ge=1, description="height = width of the images, pixels")
    vae: str = Field(description="name or path of the VAE as it was given")
    scaling_factor: float = Field(description="the VAE's factor, by which its means were multiplied")
    shift_factor: float | None = Field(description="the VAE's shift, which was subtracted before")
    shards: tuple[Shard, ...] = Field(min_length=1, description="files of latents, in order")

    @model_validator(mode="after")
    def _counts_add_up(self) -> "LatentIndex":
        for shard in self.shards:
            plain_name(shard.name)
        if (total := sum(shard.count for shard in self.shards)) != self.count:
            raise InputError("count", self.count, f"{total}, the rows of its shards together", "encode the images anew")
        return self


def load_vae(path: str | Path) -> "AutoencoderKL":
    """A VAE from a folder as diffusers saves it (config.json and diffusion_pytorch_model.safetensors), on the CPU.

    Args:
        path: the folder, or a hub name that is in the local cache; nothing is fetched.

    Raises:
        InputError: diffusers is not installed; no such folder; not a whole AutoencoderKL in safetensors.
    """
    try:
        from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
    except ImportError as error:
        todo = "pip install 'diffusionblocks[images]'"
        raise InputError("vae", str(path), "the package `diffusers`", todo) from error
    options = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    options["low_cpu_mem_usage"] = False  # which would need the package `accelerate`
    try:
        loaded: Any = AutoencoderKL.from_pretrained(str(path), **options)
    except Exception as error:
        # diffusers, the hub's client and safetensors each raise their own for what a folder lacks.
        reason = f"{type(error).__name__}: {error}"[:300]
        raise InputError("vae", str(path), "a local folder with an AutoencoderKL in safetensors", reason) from error
    vae, info = loaded
    wrong = {kind: names for kind, names in info.items() if names}
    if wrong:  # which would otherwise stay at random values
        raise InputError("vae", str(path), "exactly the weights of an AutoencoderKL", f"{wrong}"[:300])
    return vae.eval()


def encode(
    vae: "AutoencoderKL",
    images: ImageSource,
    out: str | Path,
    *,
    batch_size: int = 64,
    shard_size: int = 8192,
    name: str = "",
    show: bool = True,
) -> "LatentSet":
    """Encode a split's images into a folder of latents; a run that was killed goes on with the next shard.

    Give each split a folder of its own (OUT/train, OUT/validation, OUT/test).

    Args:
        vae: on its device and in its precision; the posterior's mean is taken, so nothing is drawn.
        images: `ImageSet`, or `LazyImages` for more than fits into memory; read a batch at a time.
        out: the folder.
        batch_size: images that the VAE sees at once.
        shard_size: latents in a file.
        name: name or path of the VAE, for the record; default: what diffusers loaded it from.
        show: show a progress bar on stderr.

    Returns:
        The folder, opened.

    Raises:
        InputError: images that the VAE cannot take (channels, size); an image that cannot be read (by name); latents
            that are not finite; a folder with shards of another VAE, other images or another shard_size.
    """
    out = Path(out)
    for setting, value in (("batch_size", batch_size), ("shard_size", shard_size)):
        if value < 1:
            raise InputError(setting, value, "at least 1", "64 images at once and 8192 in a file are usual")
    _check_images(vae, images)
    out.mkdir(parents=True, exist_ok=True)
    for left_over in out.glob(".latents-*.draft"):  # of a process that was killed
        left_over.unlink()
    key = hashlib.sha256(f"{_vae_fingerprint(vae)} {images.fingerprint()} {shard_size}".encode()).hexdigest()
    rows = {f"latents-{k:05}.safetensors": part for k, part in enumerate(torch.arange(len(images)).split(shard_size))}
    whole = {file for file in rows if _is_whole(out / file, key)}
    if len(whole) < len(rows):
        (out / INDEX).unlink(missing_ok=True)  # it may speak of shards that someone has removed
    with Progress(console=Console(stderr=True), disable=not show) as progress:
        task = progress.add_task("Encoding images", total=len(images), completed=sum(len(rows[f]) for f in whole))
        for file in [file for file in rows if file not in whole]:
            latents = []
            for batch in rows[file].split(batch_size):
                latents.append(_encode_batch(vae, images, batch))
                progress.advance(task, len(batch))
            _write_shard(out / file, torch.cat(latents), images.labels[rows[file]], key)
    scaling_factor, shift_factor = _factors(vae)
    with _open_shard(out / next(iter(rows))) as first:
        shape = first.get_slice("latents").get_shape()[1:]
    index = {
        "key": key,
        "classes": images.classes,
        "count": len(images),
        "shape": shape,
        "image_size": images.image_size,
        "vae": name or str(vae.config.get("_name_or_path", "")),
        "scaling_factor": scaling_factor,
        "shift_factor": shift_factor,
        "shards": [{"name": f, "count": len(part), "sha256": digest(out / f)} for f, part in rows.items()],
    }
    write_text(out / INDEX, validate(LatentIndex, index).model_dump_json(indent=1))
    return LatentSet(out)


def decode(vae: "AutoencoderKL", latents: Tensor, batch_size: int = 64) -> Tensor:
    """Latents as `encode` scales them -> images: the VAE's decoder after the inverse of that scaling.

    Args:
        vae: the one that encoded them, on its device and in its precision.
        latents: float, shape (N, C, h, w).
        batch_size: latents that the VAE sees at once.

    Returns:
        uint8, shape (N, 3, H, W), on the CPU (one channel if the VAE is for grey images).

    Raises:
        InputError: another number of channels than the VAE's latents have; images that are not finite.
    """
    channels = vae.config["latent_channels"]
    if latents.ndim != 4 or latents.shape[1] != channels or not len(latents):
        expected = f"(N, {channels}, h, w) with N > 0, as this VAE has them"
        raise InputError("latents.shape", tuple(latents.shape), expected, "decode with the VAE that encoded")
    scaling_factor, shift_factor = _factors(vae)
    images = []
    with torch.inference_mode():
        for batch in latents.split(batch_size):
            unscaled = batch.to(vae.device, torch.float32) / scaling_factor + (shift_factor or 0.0)
            decoded: Any = vae.decode(unscaled.to(vae.dtype))  # type: ignore[arg-type]
            images.append(to_uint8(decoded.sample).cpu())
    return torch.cat(images)


class LatentSet:
    """A folder of latents, memory-mapped: the rows asked for are read, and no others.

    Copies for worker processes open the files anew.

    Args:
        folder: as `encode` wrote it.

    Raises:
        InputError: no latents.json (the encoding was not finished), or one that is wrong; a shard that is missing,
            broken, or has other shapes or counts; a label without a class.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        path = self.folder / INDEX
        if not path.is_file():
            todo = "encode the images; an encoding that was interrupted goes on where it was"
            raise InputError("latents", str(folder), f"a folder of latents with {INDEX}", todo)
        self.index = validate(LatentIndex, read_json(path), str(path))
        self._slices: list[Any] | None = None
        labels = [_check_shard(self.folder / shard.name, shard, self.index) for shard in self.index.shards]
        self.labels: Tensor = torch.cat(labels)
        self._starts = torch.tensor([0] + [shard.count for shard in self.index.shards]).cumsum(0)
        check_labels(self.labels, self.num_classes, f"{self.folder} labels")

    def __len__(self) -> int:
        return self.index.count

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names."""
        return self.index.classes

    @property
    def num_classes(self) -> int:
        """K, the number of class names, whether or not each has a latent."""
        return len(self.index.classes)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, h, w) of one latent."""
        return self.index.shape

    def rows(self, index: Tensor) -> Tensor:
        """The latents at these rows, in the order given.

        Args:
            index: integers in 0..N-1, shape (n,).

        Returns:
            float32, shape (n, C, h, w).

        Raises:
            InputError: a row out of range.
        """
        index = index.long()
        outside = index[(index < 0) | (index >= len(self))]
        if len(outside):
            raise InputError("index", int(outside[0]), f"rows in 0..{len(self) - 1}", "choose existing rows")
        if self._slices is None:
            shards = [_open_shard(self.folder / shard.name) for shard in self.index.shards]
            self._slices = [shard.get_slice("latents") for shard in shards]
        result = torch.empty(len(index), *self.shape)
        shards = torch.searchsorted(self._starts, index, right=True) - 1
        places = index - self._starts[shards]
        for k, (shard, place) in enumerate(zip(shards.tolist(), places.tolist(), strict=True)):
            result[k] = self._slices[shard][place : place + 1][0]
        return result

    def check_files(self) -> None:
        """Read every shard whole and compare its checksum.

        Raises:
            InputError: names the file that has changed since it was written.
        """
        for shard in self.index.shards:
            path = self.folder / shard.name
            if digest(path) != shard.sha256:
                raise InputError("file", str(path), f"the checksum of {INDEX}", "remove it and encode again")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_slices": None}  # an open file cannot be sent to another process


def _factors(vae: "AutoencoderKL") -> tuple[float, float | None]:
    """(scaling_factor, shift_factor or None) of a VAE's config."""
    return float(vae.config["scaling_factor"]), vae.config.get("shift_factor")


def _check_images(vae: "AutoencoderKL", images: ImageSource) -> None:
    channels, step = vae.config["in_channels"], 2 ** (len(vae.config["block_out_channels"]) - 1)
    if images.num_channels != channels:
        raise InputError("num_channels", images.num_channels, f"{channels}, as this VAE takes", f"read with {channels}")
    if images.image_size % step:
        expected = f"a multiple of {step} pixels, by which this VAE reduces"
        raise InputError("image_size", images.image_size, expected, "choose another size")


def _vae_fingerprint(vae: "AutoencoderKL") -> str:
    """SHA-256 of the weights in their precision, and of the config without the name it was loaded by."""
    config = {key: value for key, value in vae.config.items() if not key.startswith("_")}
    # As JSON, where a tuple is the list that a loaded config has.
    total = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(vae.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def _encode_batch(vae: "AutoencoderKL", images: ImageSource, rows: Tensor) -> Tensor:
    """The latents of these rows, float32 (n, C, h, w) on the CPU."""
    scaling_factor, shift_factor = _factors(vae)
    with torch.inference_mode():
        pixels = to_float(images.pixels(rows)).to(vae.device, vae.dtype)
        encoded: Any = vae.encode(pixels)
        means = encoded.latent_dist.mode().to("cpu", torch.float32)
    latents = (means - (shift_factor or 0.0)) * scaling_factor
    finite = latents.isfinite().flatten(1).all(1)
    if not bool(finite.all()):
        row = int(rows[~finite][0])
        raise InputError(f"latent of image {row}", "not finite", "numbers", "run the VAE in float32")
    return latents


def _write_shard(path: Path, latents: Tensor, labels: Tensor, key: str) -> None:
    """A file that is there whole or not at all, with the key that tells what it belongs to."""
    draft = path.with_name(f".{path.name}.draft")
    tensors = {"latents": latents.contiguous(), "labels": labels.contiguous()}
    safetensors.torch.save_file(tensors, draft, metadata={"key": key})
    flush_to_disk(draft)
    draft.replace(path)
    flush_to_disk(path.parent)


def _is_whole(path: Path, key: str) -> bool:
    """Whether a shard of this encoding is there (safetensors compares the length with the header)."""
    try:
        with safe_open(path, "pt") as shard:
            found = shard.metadata() or {}
    except (OSError, SafetensorError):
        return False
    if found.get("key") != key:
        expected = "latents of this VAE, these images and this shard_size, or none"
        raise InputError("out", str(path), expected, "take another folder, or remove this one")
    return True


def _open_shard(path: Path) -> Any:
    try:
        return safe_open(path, "pt")
    except (OSError, SafetensorError) as error:
        raise InputError("file", str(path), "a whole shard of latents", f"{error}; encode the images again") from None


def _check_shard(path: Path, shard: Shard, index: LatentIndex) -> Tensor:
    """The labels of a shard, int64 (count,), after a look at its shapes and at what it belongs to."""
    opened = _open_shard(path)
    wanted = {"latents": ([shard.count, *index.shape], "F32"), "labels": ([shard.count], "I64")}
    parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    found = {name: (list(part.get_shape()), part.get_dtype()) for name, part in parts.items()}
    if found != wanted:
        raise InputError("file", str(path), f"tensors {wanted}", f"it has {found}; encode the images again")
    if (opened.metadata() or {}).get("key") != index.key:
        raise InputError("file", str(path), f"a shard of the encoding in {INDEX}", "encode the images again")
    return opened.get_tensor("labels").clone()
