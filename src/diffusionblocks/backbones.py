"""Backbones of `transformers` and of `diffusers`: what the two frameworks do alike under different names.

A family says which of them its class is from. Networks are built from their configs and read from safetensors; the
class is always the caller's, never one that a file names.
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from diffusionblocks.config import read_json
from diffusionblocks.errors import InputError


class Framework(Protocol):
    """What is asked of a framework of networks."""

    weights_file: str

    def class_of(self, backbone: Any, classes: Sequence[Any]) -> Any | None:
        """Which of the classes a network, or a network's config, is of."""
        ...

    def config_of(self, backbone: Any) -> Any:
        """The config of a network, or the config itself."""
        ...

    def num_layers(self, config: Any) -> int:
        """Layers of the networks that a config builds."""
        ...

    def shallow(self, config: Any, part: range) -> Any:
        """The config of the same network with only the layers of `part`."""
        ...

    def build(self, backbone_class: Any, config: Any) -> nn.Module:
        """A network with fresh weights."""
        ...

    def save(self, backbone: Any, folder: Path, state: dict[str, Tensor]) -> None:
        """Write config.json and the weights into an existing folder, as the framework itself reads them."""
        ...

    def load(self, classes: Sequence[Any], folder: Path) -> nn.Module:
        """Read a network of one of the classes in evaluation mode.

        Raises:
            InputError: missing or broken files, missing or unexpected weights.
        """
        ...

    def enable_checkpointing(self, backbone: Any, contexts: Callable[[], Any] | None) -> None:
        """Recompute each layer's activations in the backward pass (non-reentrant), inside `contexts` if given."""
        ...


class Transformers:
    """Networks of `transformers`: PreTrainedModel."""

    weights_file = "model.safetensors"

    def class_of(self, backbone: Any, classes: Sequence[Any]) -> Any | None:
        return next((one for one in classes if type(backbone) in (one, one.config_class)), None)

    def config_of(self, backbone: Any) -> Any:
        return backbone.config if isinstance(backbone, PreTrainedModel) else backbone

    def num_layers(self, config: Any) -> int:
        return config.num_hidden_layers

    def shallow(self, config: Any, part: range) -> Any:
        """Per-layer lists are sliced with the layers."""
        shallow = copy.deepcopy(config)
        for name, value in config.to_dict().items():
            if "layer" in name and isinstance(value, list) and len(value) == config.num_hidden_layers:
                setattr(shallow, name, value[part.start : part.stop])
        shallow.num_hidden_layers = len(part)
        return shallow

    def build(self, backbone_class: Any, config: Any) -> nn.Module:
        network = backbone_class(config)
        network.tie_weights()  # which the class leaves out where weights are not initialised
        return network

    def save(self, backbone: Any, folder: Path, state: dict[str, Tensor]) -> None:
        transformers_logging.disable_progress_bar()
        backbone.save_pretrained(folder, state_dict=state)

    def load(self, classes: Sequence[Any], folder: Path) -> nn.Module:
        """The folder says which of the classes it is of, and can say no other."""
        transformers_logging.disable_progress_bar()
        options = {"use_safetensors": True, "trust_remote_code": False}
        known = {one.config_class.model_type: one for one in classes}
        if len(known) == 1:
            return _loaded(classes[0], folder, self.weights_file, options)
        values = read_json(folder / "config.json")
        kind = values.get("model_type") if isinstance(values, dict) else None
        if kind not in known:
            raise InputError(f"{folder / 'config.json'} model_type", kind, f"one of {', '.join(known)}")
        return _loaded(known[kind], folder, self.weights_file, options)

    def enable_checkpointing(self, backbone: Any, contexts: Callable[[], Any] | None) -> None:
        options = {} if contexts is None else {"context_fn": contexts}
        backbone.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False, **options})


class Diffusers:
    """Networks of `diffusers`: ModelMixin, whose configs are mappings that name their class."""

    weights_file = "diffusion_pytorch_model.safetensors"

    def class_of(self, backbone: Any, classes: Sequence[Any]) -> Any | None:
        if isinstance(backbone, nn.Module):
            return next((one for one in classes if type(backbone) is one), None)
        name = backbone.get("_class_name") if isinstance(backbone, dict) else None
        return next((one for one in classes if name == one.__name__), None)

    def config_of(self, backbone: Any) -> Any:
        if isinstance(backbone, dict):
            return dict(backbone)
        return {**backbone.config, "_class_name": type(backbone).__name__}

    def num_layers(self, config: Any) -> int:
        return config["num_layers"]

    def shallow(self, config: Any, part: range) -> Any:
        return {**config, "num_layers": len(part)}

    def build(self, backbone_class: Any, config: Any) -> nn.Module:
        return backbone_class.from_config(dict(config))

    def save(self, backbone: Any, folder: Path, state: dict[str, Tensor]) -> None:
        backbone.save_config(folder)
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        safetensors.torch.save_file(state, folder / self.weights_file, metadata={"format": "pt"})

    def load(self, classes: Sequence[Any], folder: Path) -> nn.Module:
        (only,) = classes
        return _loaded(only, folder, self.weights_file, {"use_safetensors": True, "low_cpu_mem_usage": True})

    def enable_checkpointing(self, backbone: Any, contexts: Callable[[], Any] | None) -> None:
        if contexts is not None:
            raise InputError("checkpointing", True, "a backbone without hooks on its layers", "leave checkpointing off")
        backbone.enable_gradient_checkpointing()  # non-reentrant


TRANSFORMERS, DIFFUSERS = Transformers(), Diffusers()


def _loaded(backbone_class: Any, folder: Path, weights_file: str, options: dict[str, Any]) -> nn.Module:
    if not (folder / "config.json").is_file() or not (folder / weights_file).is_file():
        raise InputError("folder", str(folder), f"a folder with config.json and {weights_file}")
    loaded: Any
    try:
        loaded = backbone_class.from_pretrained(folder, output_loading_info=True, local_files_only=True, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError("folder", str(folder), f"a saved {backbone_class.__name__}", str(error)) from None
    backbone, info = loaded
    wrong = {kind: sorted(map(str, info[kind])) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    if any(wrong.values()):
        raise InputError("folder", str(folder), f"exactly the weights of a {backbone_class.__name__}", f"{wrong}")
    return backbone.train(False)
