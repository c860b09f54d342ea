"""Training checkpoints of one unit: everything needed to go on exactly, and which one to go on from."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffusionblocks import checkpoint
from diffusionblocks.block import Block
from diffusionblocks.config import read_json
from diffusionblocks.errors import InputError
from diffusionblocks.training.ema import Ema

KEPT = 2
"""Checkpoints kept per unit: the newest, and one to fall back on."""


def save(folder: Path, unit: nn.Module, optimizer: torch.optim.Optimizer, ema: Ema | None, updates: int) -> None:
    """Write a checkpoint, then drop all but the newest KEPT; those are only dropped once the new one is whole."""
    with checkpoint.atomic_folder(folder / f"checkpoint-{updates:08d}") as draft:
        checkpoint.save_network(unit, draft)
        checkpoint.save_tensors(_optimizer_tensors(unit, optimizer), draft / "optimizer.safetensors")
        if ema is not None:
            checkpoint.save_tensors(ema.average, draft / "ema.safetensors")
        (draft / "state.json").write_text(json.dumps({"updates": updates, **_identity(unit)}))
        checkpoint.write_manifest(draft)
    for old in checkpoints(folder)[KEPT:]:
        shutil.rmtree(old)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a unit, newest first, whole or not."""
    return sorted(folder.glob("checkpoint-*"), reverse=True)


def newest(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and why newer ones were passed over."""
    refused = []
    for path in checkpoints(folder):
        try:
            checkpoint.check_manifest(path)
            return path, refused
        except InputError as error:
            refused.append(f"{path.name} is passed over: {error}")
    return None, refused


def restore(folder: Path, unit: nn.Module, optimizer: torch.optim.Optimizer, ema: Ema | None) -> tuple[int, list[str]]:
    """Bring a unit, its optimizer and its averages to the newest whole checkpoint.

    Returns:
        (updates done, messages that say which checkpoint was taken and why).

    Raises:
        InputError: checkpoints are there but none is whole (going on from nothing would lose the run), or one that is
            not of this unit.
    """
    path, refused = newest(folder)
    if path is None:
        if refused:
            raise InputError("run", str(folder), "a checkpoint that is whole", refused[0])
        return 0, []
    updates = load_unit(path, unit, averaged=False)
    _load_optimizer(unit, optimizer, checkpoint.load_tensors(path / "optimizer.safetensors"), path)
    if ema is not None:
        ema.load(checkpoint.load_tensors(path / "ema.safetensors"))
    return updates, [*refused, f"{folder.name} goes on from {path.name}"]


def load_unit(path: Path, unit: nn.Module, averaged: bool) -> int:
    """Copy a checkpoint's weights into a unit of the same shape: the raw ones, or the averaged ones if it has any.

    Returns:
        The updates it had.

    Raises:
        InputError: a checkpoint of another block, or of blocks with another law or objective: the setting is named.
    """
    state = read_json(path / "state.json")
    if not isinstance(state, dict) or not isinstance(state.get("updates"), int):
        raise InputError("file", str(path / "state.json"), "a number of updates")
    for name, value in _identity(unit).items():
        if state.get(name) != value:
            raise InputError(
                "checkpoint", str(path), f"{name} {value}", f"it is of another run, with {state.get(name)}"
            )
    stored, framework = checkpoint.load_backbone(unit, path), unit.framework
    backbone = unit.get_submodule("backbone")
    checkpoint.load_state(backbone, dict(stored.state_dict()), path / framework.weights_file)  # type: ignore[union-attr]
    if isinstance(unit, Block):
        checkpoint.load_added(unit, path)
    if averaged and (path / "ema.safetensors").exists():
        average = checkpoint.load_tensors(path / "ema.safetensors")
        names = {checkpoint.canonical_name(name) for name, _ in unit.named_parameters()}
        checkpoint.load_state(unit, average, path / "ema.safetensors", names.__contains__)
    return state["updates"]


def branch(path: Path, block: Block, optimizer: torch.optim.Optimizer, ema: Ema | None) -> int:
    """Start a block from a checkpoint of the trunk: weights, optimizer state and averages go over (ours).

    The trunk is one block over the whole noise range, with the layers of the largest block; a block with fewer layers
    takes its first ones.

    Returns:
        The trunk's updates, from which the block goes on.

    Raises:
        InputError: a trunk with another law, objective or network: the setting or tensor is named.
    """
    state, free = read_json(path / "state.json"), {"block", "num_blocks", "layer_split"}
    for name, value in _identity(block).items():
        if name not in free and state.get(name) != value:
            raise InputError("from", str(path), f"{name} {value}", f"it is a trunk with {state.get(name)}")
    trunk = {f"backbone.{name}": t for name, t in checkpoint.load_backbone(block, path).state_dict().items()}
    trunk |= checkpoint.load_added_tensors(block, path)

    def part(tensors: dict[str, Tensor], key: str, name: str, like: Tensor) -> Tensor:
        tensor = tensors.get(key)
        # Conditioning has rows for every norm; those of the first layers come first.
        if tensor is not None and name == "conditioning.weight" and len(tensor) > len(like):
            tensor = tensor[: len(like)].clone()
        if tensor is None or tensor.shape != like.shape:
            found = "nothing" if tensor is None else tuple(tensor.shape)
            raise InputError("from", str(path), f"{key} of shape {tuple(like.shape)}", f"the trunk has {found}")
        return tensor

    with torch.no_grad():
        for name, tensor in checkpoint.canonical_state(block).items():
            tensor.copy_(part(trunk, name, name, tensor))
    if ema is not None:
        stored = checkpoint.load_tensors(path / "ema.safetensors")
        ema.load({name: part(stored, name, name, tensor) for name, tensor in ema.average.items()})
    moments = checkpoint.load_tensors(path / "optimizer.safetensors")
    parameters = {name: p for p, name in _parameter_names(block).items() if p.requires_grad}
    own = {}
    for key, moment in moments.items():
        name = key.rpartition(":")[0]
        if name in parameters:  # a step count is a single number
            own[key] = moment if moment.ndim == 0 else part(moments, key, name, parameters[name])
    _load_optimizer(block, optimizer, own, path)
    return state["updates"]


def _identity(unit: nn.Module) -> dict[str, Any]:
    """What must be the same for a checkpoint to be of this unit: block, noise law, objective, targets."""
    if not isinstance(unit, Block):
        return {}
    return {"block": unit.index, **unit.config.identity()}


def _parameter_names(unit: nn.Module) -> dict[Tensor, str]:
    return {p: checkpoint.canonical_name(name) for name, p in unit.named_parameters()}


def _optimizer_tensors(unit: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: NAME:exp_avg and so on."""
    names = _parameter_names(unit)
    return {f"{names[p]}:{key}": t for p, state in optimizer.state.items() for key, t in state.items()}


def _load_optimizer(unit: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], path: Path) -> None:
    entries: dict[str, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        name, _, kind = key.rpartition(":")
        entries.setdefault(name, {})[kind] = tensor
    for parameter, name in _parameter_names(unit).items():
        if not parameter.requires_grad:
            continue
        if name not in entries:
            raise InputError("file", str(path / "optimizer.safetensors"), f"the state of {name}")
        # The step count stays where the optimizer put it (fused AdamW keeps it beside the parameter).
        optimizer.state[parameter] = {kind: t.to(parameter.device) for kind, t in entries[name].items()}
