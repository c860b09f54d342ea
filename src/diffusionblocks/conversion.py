"""From a user's network to blocks: cut by building a shallow network of the same class and giving it its layers."""

from typing import Any, Literal

from torch import Tensor, nn

from diffusionblocks.block import Block
from diffusionblocks.config import CONFIGS, BlockwiseConfig, GaussianNoise, config_class, validate
from diffusionblocks.errors import InputError
from diffusionblocks.families import FAMILIES, block_class_of
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.partition import split_layers
from diffusionblocks.presets import PAPER
from diffusionblocks.randomness import seeded
from diffusionblocks.targets import component_std

Preset = Literal["default", "paper"]


def convert(
    backbone: Any,
    num_blocks: int = 3,
    *,
    family: str | None = None,
    preset: Preset = "default",
    seed: int = 0,
    **settings: Any,
) -> BlockwiseModel:
    """Cut a network into blocks that train alone.

    Args:
        backbone: a network, whose weights the blocks take over, or its config, for blocks initialised from scratch
            (each from its own seed, so that a block built alone elsewhere is the same).
        num_blocks: B.
        family: which family, where several take such a network; None: the first of `families.FAMILIES` that does.
        preset: "default" (ours) or "paper".
        seed: seed of the initialisation.
        **settings: further fields of `BlockwiseConfig`, such as p_mean=0.3 or layer_split=(2, 2, 2).

    Returns:
        The model; with neutral conditioning a single block computes exactly what the network did.

    Raises:
        InputError: a network that cannot be converted (which layer, and why), or a setting out of range.
    """
    block_class = family_of(backbone, family)
    base = block_class.framework.config_of(backbone)
    config = blockwise_config(base, family=block_class.family, num_blocks=num_blocks, preset=preset, **settings)
    parts = split_layers(block_class.framework.num_layers(base), config.num_blocks, config.layer_split)
    if not isinstance(backbone, nn.Module):
        return BlockwiseModel([build_block(base, config, k, seed) for k in range(num_blocks)], config)
    check_layers(backbone, block_class)
    targets = block_class.make_targets(config, base)
    blocks = []
    for index, part in enumerate(parts):
        shallow = cut(backbone, part, block_class)
        blocks.append(assemble(block_class, shallow, config, index, seed, targets))
    return BlockwiseModel(blocks, config)


def family_of(backbone: Any, family: str | None = None) -> type[Any]:
    """The block class for a network or a config: of the family that is asked for, or of the first that takes it.

    Raises:
        InputError: no family, or not that one, takes it.
    """
    if family is not None:
        config_class(family)
    known = []
    for name in FAMILIES if family is None else (family,):
        block_class = block_class_of(name)
        if block_class.class_of(backbone) is not None:
            return block_class
        known += [one.__name__ for one in block_class.backbone_classes]
    name = type(backbone).__name__
    raise InputError("backbone", name, f"a {', '.join(known)} or its config", "other classes are not supported")


def blockwise_config(
    backbone_config: Any, *, family: str, preset: Preset = "default", **settings: Any
) -> BlockwiseConfig:
    """Resolve the settings of a conversion: preset < settings, with sigma_data measured where it is not given."""
    if preset not in ("default", "paper"):
        raise InputError("preset", preset, "default or paper")
    values = {**(PAPER[family] if preset == "paper" else {}), **settings, "family": family}
    return with_measured_scale(validate(CONFIGS[family], values), backbone_config)


def with_measured_scale(config: BlockwiseConfig, backbone_config: Any) -> BlockwiseConfig:
    """The config with sigma_data measured from the table of targets, unless it is given."""
    if not isinstance(config, GaussianNoise) or config.sigma_data is not None:
        return config
    table = block_class_of(config.family).make_targets(config, backbone_config)
    return config.model_copy(update={"sigma_data": component_std(table)})


def build_block(backbone_config: Any, config: BlockwiseConfig, index: int, seed: int, key: int | None = None) -> Block:
    """Build one block from scratch, initialised from (seed, index) alone, or from (seed, key) if a key is given."""
    key = index if key is None else key
    block_class = block_class_of(config.family)
    num_layers = block_class.framework.num_layers(backbone_config)
    part = split_layers(num_layers, config.num_blocks, config.layer_split)[index]
    with seeded("cpu", seed, "backbone", key):
        shallow = _build(block_class, backbone_config, part)
    targets = block_class.make_targets(config, backbone_config)
    return assemble(block_class, shallow, config, index, seed, targets, key)


def assemble(
    block_class: type[Any],
    shallow: nn.Module,
    config: BlockwiseConfig,
    index: int,
    seed: int,
    targets: Tensor | None,
    key: int | None = None,
) -> Block:
    """Wrap a shallow network as a block; what is added to it is initialised from (seed, index) or (seed, key)."""
    with seeded("cpu", seed, "block", index if key is None else key):
        parameter = next(shallow.parameters())
        return block_class(shallow, config, index, targets).to(parameter.device).train(shallow.training)


def _build(block_class: type[Block], backbone_config: Any, part: range) -> nn.Module:
    """A fresh network with the layers of `part` alone."""
    framework = block_class.framework
    network = framework.build(block_class.class_of(backbone_config), framework.shallow(backbone_config, part))
    block_class.initialise(network)
    return network


def cut(backbone: Any, part: range, block_class: type[Block]) -> Any:
    """A network of the same class with the layers of `part` and copies of everything outside the layers.

    Raises:
        InputError: a layer that its class builds otherwise where it is the first one (ModernBERT's first layer has no
            norm before attention); weights that the rebuilt network does not have, or lacks, by name.
    """
    with seeded("cpu", 0, "cut"):
        shallow: Any = _build(block_class, block_class.framework.config_of(backbone), part)
    parameter = next(backbone.parameters())
    shallow = shallow.to(device=parameter.device, dtype=parameter.dtype)
    path = block_class.path_of_layers(backbone)
    state = _renumber(backbone.state_dict(), part, path + ".")
    first, known = f"{path}.0.", shallow.state_dict()
    lost = sorted(name.removeprefix(first) for name in state if name.startswith(first) and name not in known)
    if part.start and lost:
        raise InputError(
            f"{path}.{part.start}",
            ", ".join(lost),
            f"nothing that a {type(backbone).__name__} has not in its first layer, which this one would be of a block",
            "take num_blocks=1, or train from scratch: convert the config",
        )
    try:
        shallow.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise InputError("backbone", type(backbone).__name__, "the weights of its config", str(error)) from None
    return shallow.train(backbone.training)


def check_layers(backbone: Any, block_class: type[Block]) -> None:
    """Refuse a network whose layers are not those that its config builds: a cut could not rebuild them.

    Raises:
        InputError: the first such layer, by name, or a stack of another length than the config says.
    """
    path = block_class.path_of_layers(backbone)
    layers = backbone.get_submodule(path)
    config = block_class.framework.config_of(backbone)
    count = block_class.framework.num_layers(config)
    if len(layers) != count:
        raise InputError(path, len(layers), f"{count} layers, as its config says")
    with seeded("cpu", 0, "cut"):
        model: Any = _build(block_class, config, range(min(count, 2)))
    # The first layer may have other parts than those after it.
    wanted = [_structure(layer) for layer in model.get_submodule(path)]
    for number, layer in enumerate(layers):
        if _structure(layer) != wanted[min(number, 1)]:
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
