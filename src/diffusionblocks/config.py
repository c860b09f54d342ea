"""What a converted model is, as data: saved with its weights and used from there, never guessed again."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from diffusionblocks.errors import InputError

if TYPE_CHECKING:  # torch is imported when a law is asked for, so that --help answers at once
    from diffusionblocks.noise import LogNormal, Masking, NoiseLaw

Config = TypeVar("Config", bound=BaseModel)


class BlockwiseConfig(BaseModel):
    """Blocks, objective and sampling plan of a `BlockwiseModel`: what every family has.

    The noise law is one of `GaussianNoise` and `MaskingNoise`. Each family has a class of its own below, with its
    settings and defaults; `presets` holds what the paper sets differently.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format_version: Literal[1] = 1
    family: str = Field(description="which family of networks the blocks are")

    num_blocks: int = Field(3, ge=1, description="number of blocks B")
    layer_split: tuple[int, ...] | None = Field(None, description="layers of each block; default: as even as can be")

    cut: Literal["equal-mass", "uniform-linear", "uniform-log"] = Field(
        "equal-mass", description="how the noise range is cut into blocks"
    )
    gamma: float = Field(0.05, ge=0, description="overlap of the blocks' training intervals")

    conditioning: Literal["lean", "scale-shift", "adaln", "own"] = Field(
        "lean", description="how norms see the noise level; own: the network has its own way"
    )
    conditioning_features: int = Field(
        8, ge=2, multiple_of=2, description="features of the noise level for lean and scale-shift conditioning"
    )

    plan_draws: float = Field(
        0.0, ge=0, le=1, description="share of training levels that are the plan's own, at random"
    )

    num_sampling_steps: int | None = Field(None, ge=1, description="steps of the stored plan; default: one a block")
    spacing: Literal["karras", "log", "mass", "linear"] = Field(
        "karras", description="how steps are placed inside a block"
    )
    allotment: Literal["even", "range"] = Field(
        "even",
        description="steps of a block: as many as any other's, or as the spacing over the whole range puts in it",
    )

    def law(self) -> "NoiseLaw":
        """The noise law."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """What trained weights belong to: all settings but those that say how trained blocks are run.

        The plan is part of it where levels are drawn from it in training.
        """
        free = SAMPLING - PLAN if self.plan_draws else SAMPLING
        own = self.model_dump(mode="json", include=set(CONFIGS[self.family].model_fields))
        return {name: value for name, value in own.items() if name not in free}

    @model_validator(mode="after")
    def _blocks_fit_together(self) -> "BlockwiseConfig":
        split = self.layer_split
        if split is not None and (len(split) != self.num_blocks or min(split) < 1):
            raise InputError("layer_split", list(split), f"{self.num_blocks} counts of at least 1, one a block")
        if self.num_sampling_steps is not None and self.num_sampling_steps < self.num_blocks:
            raise InputError(
                "num_sampling_steps",
                self.num_sampling_steps,
                f"at least one step for each of the {self.num_blocks} blocks",
                f"take {self.num_blocks} or more",
            )
        return self


class GaussianNoise(BaseModel):
    """Targets under Gaussian noise, z = y + sigma * eps."""

    p_mean: float = Field(-1.2, description="mean of log sigma in the noise law")
    p_std: float = Field(1.2, gt=0, description="standard deviation of log sigma in the noise law")
    sigma_min: float = Field(0.002, gt=0, description="smallest noise level")
    sigma_max: float = Field(80.0, gt=0, description="largest noise level")
    sigma_data: float | None = Field(None, gt=0, description="standard deviation of the targets; default: measured")
    weight: Literal["none", "edm"] = Field("none", description="weight of the loss as a function of sigma")

    def law(self) -> "LogNormal":
        """The truncated normal law of log sigma."""
        from diffusionblocks.noise import LogNormal

        return LogNormal(self.p_mean, self.p_std, self.sigma_min, self.sigma_max)


class MaskingNoise(BaseModel):
    """Targets whose tokens are masked one by one."""

    schedule: Literal["linear", "cosine"] = Field(
        "linear", description="alpha(t), the share of tokens not masked: 1 - t, or 1 - sin(pi t / 2)"
    )
    cut: Literal["equal-mass", "uniform-linear"] = Field(
        "equal-mass", description="how the noise range is cut into blocks: at equal decrements of alpha, or of t"
    )
    spacing: Literal["mass", "linear"] = Field(
        "mass", description="how steps are placed inside a block: even in alpha, or in t"
    )

    def law(self) -> "Masking":
        """The law by which tokens are masked."""
        from diffusionblocks.noise import Masking

        return Masking(self.schedule)


class VitConfig(GaussianNoise, BlockwiseConfig):
    """Blocks that classify images; z is a noisy embedding of the label."""

    family: Literal["vit"] = Field("vit", description="which family of networks the blocks are")

    p_mean: float = Field(0.3, description="mean of log sigma in the noise law")
    p_std: float = Field(1.0, gt=0, description="standard deviation of log sigma in the noise law")

    conditioning: Literal["lean", "scale-shift", "adaln"] = Field("lean", description="how norms see the noise level")

    targets: Literal["simplex", "random"] = Field("simplex", description="frozen table of target embeddings")
    targets_seed: int = Field(0, ge=0, description="seed of the random table")
    readout: Literal["hidden", "preconditioned"] = Field("hidden", description="what the classifier reads")
    z_dropout: float = Field(0.8, ge=0, lt=1, description="share of training samples that see z = 0 for their target")

    start: Literal["zero", "noise"] = Field("zero", description="state the chain starts from")
    decoding: Literal["chain", "average"] = Field(
        "average", description="the answer for a class: the chain's last, or the mean of all blocks' at z = 0"
    )

    @model_validator(mode="after")
    def _readout_fits(self) -> "VitConfig":
        if self.readout == "preconditioned" and self.targets != "random":
            raise InputError(
                "readout",
                self.readout,
                "targets=random, whose width is the network's",
                "set targets, or readout=hidden",
            )
        return self


class DitConfig(GaussianNoise, BlockwiseConfig):
    """Blocks that generate images of a class; z is a noisy image, in units in which the data have sigma_data."""

    family: Literal["dit"] = Field("dit", description="which family of networks the blocks are")

    conditioning: Literal["own"] = Field("own", description="how norms see the noise level: by the network's AdaLN")

    sigma_data: float = Field(0.5, gt=0, description="standard deviation that the data are scaled to")
    weight: Literal["none", "edm"] = Field("edm", description="weight of the loss as a function of sigma")
    data_mean: tuple[float, ...] | None = Field(None, description="mean of each channel of the data; default: measured")
    data_std: tuple[float, ...] | None = Field(
        None, description="standard deviation of each channel of the data; default: measured"
    )
    label_dropout: float = Field(0.1, ge=0, lt=1, description="share of training samples that see no label")

    num_sampling_steps: int | None = Field(36, ge=1, description="steps of the stored plan; default: one a block")
    allotment: Literal["even", "range"] = Field(
        "range",
        description="steps of a block: as many as any other's, or as the spacing over the whole range puts in it",
    )
    sampler: Literal["euler", "heun", "dpmpp-2m"] = Field("dpmpp-2m", description="how a step is taken")
    guidance: float = Field(1.0, ge=0, description="classifier-free guidance; 1: conditional, 0: unconditional")

    @model_validator(mode="after")
    def _data_and_guidance_fit(self) -> "DitConfig":
        if self.guidance != 1 and not self.label_dropout:
            raise InputError(
                "guidance", self.guidance, "1 where label_dropout=0: no block has seen a sample without its label"
            )
        if self.data_std is not None and not min(self.data_std) > 0:
            raise InputError("data_std", list(self.data_std), "standard deviations above 0")
        return self


class MaskedLmConfig(MaskingNoise, BlockwiseConfig):
    """Blocks that fill in masked text; z is a sequence of tokens of which some are masked."""

    family: Literal["masked-lm"] = Field("masked-lm", description="which family of networks the blocks are")

    conditioning: Literal["lean", "scale-shift", "adaln"] = Field("lean", description="how norms see the noise level")
    weight: Literal["tokens", "nelbo"] = Field(
        "tokens",
        description="weight of a sequence in the loss: by its number of masked tokens, or the same for all, as in the "
        "bound on the likelihood",
    )

    num_sampling_steps: int | None = Field(32, ge=1, description="steps of the stored plan; default: one a block")
    sampler: Literal["counts", "ancestral"] = Field(
        "counts", description="how many tokens a step reveals: as many as the plan says, or that many on average"
    )
    temperature: float = Field(1.0, gt=0, description="temperature of the distribution that tokens are drawn from")


class CausalLmConfig(GaussianNoise, BlockwiseConfig):
    """Blocks that continue a text token by token; z is a noisy embedding of the next token."""

    family: Literal["causal-lm"] = Field("causal-lm", description="which family of networks the blocks are")

    p_mean: float = Field(1.0, description="mean of log sigma in the noise law")
    p_std: float = Field(1.0, gt=0, description="standard deviation of log sigma in the noise law")
    gamma: float = Field(0.1, ge=0, description="overlap of the blocks' training intervals")

    conditioning: Literal["lean", "scale-shift", "adaln"] = Field("lean", description="how norms see the noise level")

    context: Literal["concat", "fused"] = Field(
        "fused",
        description="what a noisy token sees of those before it: their clean copies, in a sequence twice as long, or "
        "tokens that carry the noisy ones with them",
    )
    noise_per: Literal["sequence", "token"] = Field("sequence", description="what has a noise level of its own")
    targets: str = Field(
        "random", description="frozen table of target embeddings: random, or a folder with a model to take them from"
    )
    targets_seed: int = Field(0, ge=0, description="seed of the random table")
    z_dropout: float = Field(0.8, ge=0, le=1, description="share of training samples that see z = 0 for their target")
    evidence: bool = Field(
        False, description="whether the readout adds what z says of each token by Bayes' rule, z e / sigma^2"
    )

    start: Literal["zero", "noise"] = Field("zero", description="state the chain starts from")
    decoding: Literal["chain", "average"] = Field(
        "average", description="the answer for a token: the chain's last, or the mean of all blocks' at z = 0"
    )
    bridge: Literal["sampled", "soft", "top-k", "hard"] = Field(
        "sampled",
        description="from a step's answer to the next z: by a token drawn from it, the mean target, that of the most "
        "likely bridge_top_k, or the most likely one",
    )
    bridge_temperature: float = Field(1.0, gt=0, description="temperature of the answer in the bridge")
    bridge_top_k: int = Field(8, ge=1, description="tokens that the bridge top-k keeps")
    temperature: float = Field(1.0, gt=0, description="temperature of the distribution that tokens are drawn from")
    top_p: float = Field(1.0, gt=0, le=1, description="tokens are drawn from the most likely that have this share")

    @model_validator(mode="after")
    def _noise_fits(self) -> "CausalLmConfig":
        if self.context == "fused" and self.noise_per == "token":
            raise InputError(
                "noise_per",
                self.noise_per,
                "sequence where context=fused: the noisy tokens are seen with the clean ones, at one level",
                "set context=concat",
            )
        return self


class RecurrentLmConfig(CausalLmConfig):
    """One block that is a recurrent network: z enters its core, between the first layers and the last."""

    family: Literal["recurrent-lm"] = Field("recurrent-lm", description="which family of networks the blocks are")

    num_blocks: Literal[1] = Field(1, description="number of blocks B: the whole network is one")
    prelude: int = Field(2, ge=0, description="layers before the core, which see the text alone")
    coda: int = Field(2, ge=0, description="layers after the core")

    p_mean: float = Field(0.3, description="mean of log sigma in the noise law")
    p_std: float = Field(1.0, gt=0, description="standard deviation of log sigma in the noise law")
    sigma_min: float = Field(0.2, gt=0, description="smallest noise level")
    sigma_max: float = Field(10.0, gt=0, description="largest noise level")

    state_scale: Literal["unit", "target"] = Field(
        "target",
        description="what the core's state is: the noisy target at unit variance, or the best linear guess of the "
        "target that it gives",
    )
    evidence: bool = Field(
        True, description="whether the readout adds what z says of each token by Bayes' rule, z e / sigma^2"
    )

    context: Literal["fused"] = Field("fused", description="what a noisy token sees of those before it")
    noise_per: Literal["sequence"] = Field("sequence", description="what has a noise level of its own")


PLAN = {"num_sampling_steps", "spacing", "allotment"}
BRIDGE = {"bridge", "bridge_temperature", "bridge_top_k"}
SAMPLING = PLAN | BRIDGE | {"start", "decoding", "sampler", "guidance", "temperature", "top_p"}
"""Settings that say how trained blocks are run: of the plan, and of what is done with it."""

CONFIGS: dict[str, type[BlockwiseConfig]] = {
    "vit": VitConfig,
    "dit": DitConfig,
    "masked-lm": MaskedLmConfig,
    "causal-lm": CausalLmConfig,
    "recurrent-lm": RecurrentLmConfig,
}
"""The config class of each family."""


def config_class(family: Any, source: str = "") -> type[BlockwiseConfig]:
    """The config class of a family.

    Raises:
        InputError: no such family.
    """
    if not isinstance(family, str) or family not in CONFIGS:
        setting = f"{source} family".strip()
        raise InputError(setting, family, f"one of {', '.join(CONFIGS)}")
    return CONFIGS[family]


def validate(model: type[Config], values: dict[str, Any], source: str = "") -> Config:
    """Build a config; the first thing wrong becomes one line that names the setting, its value and what it takes.

    Args:
        model: the pydantic model.
        values: settings by name.
        source: where they came from (a file), added to the message.

    Raises:
        InputError: an unknown setting, or a value that its type or range does not allow.
    """
    for name, value in values.items() if isinstance(values, dict) else ():
        # pydantic takes True for 1.
        if isinstance(value, bool) and name in model.model_fields and model.model_fields[name].annotation is not bool:
            raise InputError(name, value, "a value, not true or false", source and f"see {source}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or model.__name__
        todo = f"see {source}" if source else ""
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            raise cause from None
        if first["type"] == "extra_forbidden":
            raise InputError(name, first["input"], f"a known setting ({_nearest(name, model)})", todo) from None
        field = model.model_fields.get(str(first["loc"][0])) if first["loc"] else None
        what = f"it is the {field.description}" if field is not None and field.description else ""
        raise InputError(name, first["input"], _expected(first["msg"]), "; ".join(filter(None, [what, todo]))) from None


def read_json(path: Path) -> Any:
    """Parse a JSON file.

    Raises:
        InputError: missing file, or not JSON (with line and column).
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("file", str(path), "a readable JSON file", error.strerror or str(error)) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError("file", str(path), "valid JSON in UTF-8", str(error)) from None


def _nearest(name: str, model: type[BaseModel]) -> str:
    import difflib

    close = difflib.get_close_matches(name, model.model_fields, n=3, cutoff=0.5)
    return "did you mean " + ", ".join(close) + "?" if close else "one of " + ", ".join(model.model_fields)


def _expected(message: str) -> str:
    """pydantic's sentence as the tail of "expected ...": "Input should be a valid integer" -> "a valid integer"."""
    for prefix in ("Input should be ", "Value error, "):
        message = message.removeprefix(prefix)
    return message[:1].lower() + message[1:]
