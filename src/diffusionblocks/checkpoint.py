"""Folders on disk: written whole or not at all, read only when whole, safetensors and JSON only.

A block's folder has the backbone as its own `save_pretrained` writes it (config.json, model.safetensors) and
conditioning.safetensors for what was added to it. A training checkpoint adds optimizer, averaged weights and counts.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from diffusionblocks.config import read_json
from diffusionblocks.errors import InputError

MANIFEST = "manifest.json"
ADDED_FILE = "conditioning.safetensors"


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder that appears at `path` only when the body has succeeded and its files are on the disk.

    The body writes into a temporary sibling, which then takes the place of `path`; what was at `path` stays as it was
    until then, and for good if the body fails (a full disk, say).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left_over in path.parent.glob(f".{path.name}.draft-*"):  # of a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
    draft.mkdir()
    try:
        yield draft
        for file in [p for p in draft.rglob("*") if p.is_file()] + [draft]:
            flush_to_disk(file)
        old = path.with_name(f".{path.name}.old-{os.getpid()}")
        if path.exists():
            path.rename(old)
        draft.rename(path)
        flush_to_disk(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old text or the new one, never a part."""
    draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    flush_to_disk(draft)
    draft.replace(path)


def write_manifest(folder: Path) -> None:
    """Write manifest.json with the size and SHA-256 of every file of the folder (plain files, no subfolders)."""
    files = {p.name: {"bytes": p.stat().st_size, "sha256": digest(p)} for p in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")


def check_manifest(folder: Path) -> None:
    """Check every file that the manifest lists.

    Raises:
        InputError: no manifest, a name that is not a plain file name inside the folder, or a file that is missing,
            truncated or changed.
    """
    manifest = read_json(folder / MANIFEST)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or not files:
        raise InputError("file", str(folder / MANIFEST), "a manifest that lists files")
    for name, entry in files.items():
        path = folder / plain_name(name)
        if path.is_symlink() or not path.is_file():
            raise InputError("file", str(path), "the file that the manifest lists")
        if path.stat().st_size != entry["bytes"] or digest(path) != entry["sha256"]:
            raise InputError("file", str(path), f"{entry['bytes']} bytes with the checksum of the manifest")


def plain_name(name: str) -> str:
    """The name itself if it is a plain file name.

    Raises:
        InputError: a path, `..`, an absolute name, or NUL.
    """
    if not name or name in {".", ".."} or any(c in name for c in "/\\\0"):
        raise InputError("name", name, "a plain file name inside the folder")
    return name


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors to a safetensors file, on the CPU and contiguous."""
    safetensors.torch.save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, path)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        InputError: missing or broken file, by name.
    """
    try:
        return safetensors.torch.load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError("file", str(path), "a readable safetensors file", str(error)) from None


def canonical_name(name: str) -> str:
    """A parameter's name without the prefixes of torch.compile and DistributedDataParallel."""
    parts = name.split(".")
    while parts and parts[0] in {"_orig_mod", "module"}:
        parts.pop(0)
    return ".".join(part for part in parts if part != "_orig_mod")


def uncompiled(module: nn.Module) -> nn.Module:
    """The module that torch.compile or DistributedDataParallel wraps, or the module itself."""
    inner = [child for name, child in module.named_children() if name in {"_orig_mod", "module"}]
    return inner[0] if inner else module


def canonical_state(module: nn.Module) -> dict[str, Tensor]:
    """A module's state dict under canonical names."""
    return {canonical_name(name): tensor for name, tensor in module.state_dict().items()}


def save_network(unit: nn.Module, folder: Path) -> None:
    """Write a block (or a plain network: a unit with nothing beside its backbone) into an existing folder."""
    unit = uncompiled(unit)
    backbone, framework = uncompiled(unit.get_submodule("backbone")), unit.framework
    framework.save(backbone, folder, canonical_state(backbone))  # type: ignore[union-attr]
    added = {name: t for name, t in canonical_state(unit).items() if not name.startswith("backbone.")}
    if added:
        save_tensors(added, folder / ADDED_FILE)


def load_backbone(unit: nn.Module, folder: Path) -> nn.Module:
    """Read the network of a unit's class from a folder, as a module of its own; its class is never named by the folder.

    Raises:
        InputError: missing or broken files, missing or unexpected weights.
    """
    unit = uncompiled(unit)
    framework: Any = unit.framework
    return framework.load((type(uncompiled(unit.get_submodule("backbone"))),), folder)


def load_added(unit: nn.Module, folder: Path) -> None:
    """Read conditioning.safetensors into a block.

    Raises:
        InputError: missing, broken, or other names or shapes than the block has.
    """
    path = folder / ADDED_FILE
    load_state(unit, load_added_tensors(unit, folder), path, lambda name: not name.startswith("backbone."))


def load_added_tensors(unit: nn.Module, folder: Path) -> dict[str, Tensor]:
    """The tensors of what was added to a block's backbone, by name; none where nothing is added."""
    adds = any(not name.startswith("backbone.") for name in canonical_state(unit))
    return load_tensors(folder / ADDED_FILE) if adds else {}


def load_state(unit: nn.Module, tensors: dict[str, Tensor], path: Path, wanted: Any = lambda name: True) -> None:
    """Copy tensors into a unit's state by canonical name; names and shapes must match exactly."""
    state = {name: tensor for name, tensor in canonical_state(unit).items() if wanted(name)}
    for name in sorted(state.keys() ^ tensors.keys()):
        raise InputError("file", str(path), "the tensors of this network", f"{name} is on one side only")
    for name, tensor in state.items():
        if tensor.shape != tensors[name].shape:
            raise InputError("file", str(path), f"{name} of shape {tuple(tensor.shape)}", f"{tensors[name].shape}")
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(tensors[name])


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk and not just in its cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
