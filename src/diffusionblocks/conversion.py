"""From a user's network to blocks: cut by building a shallow network of the same class and giving it its layers."""

import copy
from typing import Any, Literal

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from diffusionblocks.block import Block
from diffusionblocks.config import PAPER, BlockwiseConfig, validate
from diffusionblocks.errors import InputError
from diffusionblocks.families import FAMILIES, VitBlock
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.partition import split_layers
from diffusionblocks.randomness import seeded
from diffusionblocks.targets import component_std

Preset = Literal["default", "paper"]


def convert(
    backbone: PreTrainedModel | PreTrainedConfig,
    num_blocks: int = 3,
    *,
    preset: Preset = "default",
    seed: int = 0,
    **settings: Any,
) -> BlockwiseModel:
    """Cut a network into blocks that train alone.

    Args:
        backbone: a network, whose weights the blocks take over, or its config, for blocks initialised from scratch
            (each from its own seed, so that a block built alone elsewhere is the same).
        num_blocks: B.
        preset: "default" (ours) or "paper".
        seed: seed of the initialisation.
        **settings: further fields of `BlockwiseConfig`, such as p_mean=0.3 or layer_split=(2, 2, 2).

    Returns:
        The model; with neutral conditioning a single block computes exactly what the network did.

    Raises:
        InputError: a network that cannot be converted (which layer, and why), or a setting out of range.
    """
    block_class = family_of(backbone)
    base = backbone.config if isinstance(backbone, PreTrainedModel) else backbone
    config = blockwise_config(base, num_blocks=num_blocks, preset=preset, **settings)
    parts = split_layers(base.num_hidden_layers, config.num_blocks, config.layer_split)
    if not isinstance(backbone, PreTrainedModel):
        return BlockwiseModel([build_block(base, config, k, seed) for k in range(num_blocks)], config)
    check_layers(backbone, block_class)
    targets = block_class.make_targets(config, base)
    blocks = []
    for index, part in enumerate(parts):
        shallow = cut(backbone, part, block_class.layers_path)
        blocks.append(assemble(block_class, shallow, config, index, seed, targets))
    return BlockwiseModel(blocks, config)


def family_of(backbone: PreTrainedModel | PreTrainedConfig) -> type[VitBlock]:
    """The block class for a network or a config.

    Raises:
        InputError: no family takes it.
    """
    for block_class in FAMILIES.values():
        wanted = block_class.backbone_class
        if type(backbone) in (wanted, wanted.config_class):
            return block_class
    known = ", ".join(block_class.backbone_class.__name__ for block_class in FAMILIES.values())
    raise InputError("backbone", type(backbone).__name__, f"a {known} or its config", "other classes are not supported")


def blockwise_config(
    backbone_config: PreTrainedConfig, *, preset: Preset = "default", **settings: Any
) -> BlockwiseConfig:
    """Resolve the settings of a conversion: preset < settings, with sigma_data measured where it is not given."""
    if preset not in ("default", "paper"):
        raise InputError("preset", preset, "default or paper")
    values = {**(PAPER if preset == "paper" else {}), **settings, "family": family_of(backbone_config).family}
    return with_measured_scale(validate(BlockwiseConfig, values), backbone_config)


def with_measured_scale(config: BlockwiseConfig, backbone_config: PreTrainedConfig) -> BlockwiseConfig:
    """The config with sigma_data measured from the table of targets, unless it is given."""
    if config.sigma_data is not None:
        return config
    table = family_of(backbone_config).make_targets(config, backbone_config)
    return config.model_copy(update={"sigma_data": component_std(table)})


def build_block(backbone_config: PreTrainedConfig, config: BlockwiseConfig, index: int, seed: int) -> Block:
    """Build one block from scratch, initialised from (seed, index) alone."""
    block_class = family_of(backbone_config)
    part = split_layers(backbone_config.num_hidden_layers, config.num_blocks, config.layer_split)[index]
    with seeded("cpu", seed, "backbone", index):
        shallow = block_class.backbone_class(shallow_config(backbone_config, part))
    targets = block_class.make_targets(config, backbone_config)
    return assemble(block_class, shallow, config, index, seed, targets)


def assemble(
    block_class: type[VitBlock],
    shallow: PreTrainedModel,
    config: BlockwiseConfig,
    index: int,
    seed: int,
    targets: Tensor,
) -> Block:
    """Wrap a shallow network as a block; what is added to it is initialised from (seed, index)."""
    with seeded("cpu", seed, "block", index):
        parameter = next(shallow.parameters())
        return block_class(shallow, config, index, targets).to(parameter.device).train(shallow.training)


def shallow_config(config: PreTrainedConfig, part: range) -> Any:
    """The config of the same network with only the layers of `part`; per-layer lists are sliced with them."""
    shallow = copy.deepcopy(config)
    for name, value in config.to_dict().items():
        if "layer" in name and isinstance(value, list) and len(value) == config.num_hidden_layers:
            setattr(shallow, name, value[part.start : part.stop])
    shallow.num_hidden_layers = len(part)
    return shallow


def cut(backbone: PreTrainedModel, part: range, layers_path: str) -> PreTrainedModel:
    """A network of the same class with the layers of `part` and copies of everything outside the layers.

    Raises:
        InputError: weights that the rebuilt network does not have, or lacks, by name.
    """
    with seeded("cpu", 0, "cut"):
        shallow: Any = type(backbone)(shallow_config(backbone.config, part))
    parameter = next(backbone.parameters())
    shallow = shallow.to(device=parameter.device, dtype=parameter.dtype)
    state = _renumber(backbone.state_dict(), part, layers_path + ".")
    try:
        shallow.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise InputError("backbone", type(backbone).__name__, "the weights of its config", str(error)) from None
    return shallow.train(backbone.training)


def check_layers(backbone: PreTrainedModel, block_class: type[VitBlock]) -> None:
    """Refuse a network whose layers are not those that its config builds: a cut could not rebuild them.

    Raises:
        InputError: the first such layer, by name, or a stack of another length than the config says.
    """
    path, layers = block_class.layers_path, backbone.get_submodule(block_class.layers_path)
    count = backbone.config.num_hidden_layers
    if len(layers) != count:  # type: ignore[arg-type]
        raise InputError(path, len(layers), f"{count} layers, as config.num_hidden_layers says")  # type: ignore[arg-type]
    with seeded("cpu", 0, "cut"):
        model: Any = block_class.backbone_class(shallow_config(backbone.config, range(1)))
    wanted = _structure(model.get_submodule(f"{path}.0"))
    for number, layer in enumerate(layers):  # type: ignore[arg-type]
        if _structure(layer) != wanted:
            raise InputError(
                f"{path}.{number}",
                type(layer).__name__,
                "a layer of the class, width and parts that the config builds",
                "an edited layer cannot be rebuilt in a block; put the change into the config or leave it out",
            )


def _structure(layer: Any) -> list[tuple[str, type, tuple[Any, ...]]]:
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    return [
        (name, type(m), tuple(shapes.get(f"{name}.{p}") for p in ("weight", "bias")))
        for name, m in layer.named_modules()
    ]


def _renumber(state: dict[str, Tensor], part: range, prefix: str) -> dict[str, Tensor]:
    """The state dict of the shallow network: other layers dropped, those of `part` counted from 0."""
    kept = {}
    for name, tensor in state.items():
        if not name.startswith(prefix):
            kept[name] = tensor
            continue
        number, _, rest = name.removeprefix(prefix).partition(".")
        if int(number) in part:
            kept[f"{prefix}{int(number) - part.start}.{rest}"] = tensor
    return kept
