"""Score a run folder on a split and keep the result in it."""

from pathlib import Path
from typing import Any

from diffusionblocks.config import SAMPLING
from diffusionblocks.data.images import ImageSet, to_uint8
from diffusionblocks.data.latents import decode, load_vae
from diffusionblocks.data.text import TokenSet
from diffusionblocks.errors import InputError
from diffusionblocks.evaluation.causal import CausalOptions, evaluate_causal_model
from diffusionblocks.evaluation.classification import EvalOptions, evaluate_blocks, evaluate_plain
from diffusionblocks.evaluation.features import inception_features, train_features
from diffusionblocks.evaluation.generation import GenerationOptions, evaluate_generator
from diffusionblocks.evaluation.grid import write_grid
from diffusionblocks.evaluation.language import LanguageOptions, evaluate_language_model
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.run_config import AnyRun, CausalLmRun, DitRun
from diffusionblocks.training.data import Images, load_split
from diffusionblocks.training.run import load_config, load_trained, write_result


def score_run(
    run_dir: Path,
    split: str,
    options: EvalOptions | GenerationOptions | LanguageOptions | CausalOptions | None = None,
    data_dir: str | None = None,
    device: str = "cpu",
    name: str = "",
) -> dict[str, Any]:
    """Evaluate a run's newest checkpoints on a split; written to RUN/eval-SPLIT.json, with samples in eval-SPLIT.png.

    Args:
        run_dir: the run.
        split: "train", "validation" or "test".
        options: how to decode or to sample.
        data_dir: where the data are now, if not where they were.
        device: where to compute.
        name: added to the names of the files, for a run that is scored in several ways.

    Returns:
        What `evaluate_blocks`, `evaluate_plain`, `evaluate_generator`, `evaluate_language_model` or
        `evaluate_causal_model` gives, with split, the number of images, method, the updates of each unit, and the
        settings of the run that say how it is run.
    """
    config = load_config(run_dir)
    where = config.located(data_dir)
    data = load_split(where, split, run_dir)
    model, updates = load_trained(run_dir, config)
    model.to(device)
    stem = f"eval-{split}{name}"
    if isinstance(config, CausalLmRun):
        assert isinstance(data, TokenSet)
        assert options is None or isinstance(options, CausalOptions)
        result = evaluate_causal_model(model, data, options or CausalOptions())
    elif isinstance(data, TokenSet):
        assert options is None or isinstance(options, LanguageOptions)
        result = evaluate_language_model(model, data, options or LanguageOptions())
    elif isinstance(config, DitRun):
        assert options is None or isinstance(options, GenerationOptions)
        result = _score_generator(run_dir / f"{stem}.png", where, data, model, options or GenerationOptions())
    else:
        score = evaluate_blocks if isinstance(model, BlockwiseModel) else evaluate_plain
        result = score(model, data, options or EvalOptions())  # type: ignore[operator]
    if not isinstance(data, TokenSet):
        result["images"] = len(data)
    result |= {"split": split, "method": config.method, "updates": updates}
    result["settings"] = run_with(config)
    write_result(run_dir, f"{stem}.json", result)
    return result


def run_with(config: AnyRun) -> dict[str, Any]:
    """Those of a run's settings that say how its trained blocks are run."""
    return {name: value for name, value in config.model_dump(mode="json").items() if name in SAMPLING}


def _score_generator(
    picture: Path, config: Any, data: Images, model: BlockwiseModel, options: GenerationOptions
) -> dict[str, Any]:
    """Scores of a generator, with a picture of its samples."""
    to_images: Any = to_uint8
    if not isinstance(data, ImageSet):
        if options.vae is None:
            raise InputError("vae", None, "the autoencoder that the latents were encoded with", "set --vae DIR")
        vae = load_vae(options.vae)
        to_images = lambda latents: decode(vae, latents)  # noqa: E731
    features = features_of(config, picture.parent, options.features)
    result, images = evaluate_generator(model, data, features, options, to_images)
    first: Any = model.block_list[0]
    columns = first.num_classes
    write_grid(images[: 8 * columns], picture, columns if columns <= 20 else None)
    return result


def features_of(config: Any, run_dir: Path, where: str | None) -> Any:
    """What FID is measured with: Inception, nothing, or a classifier of the training split, trained if need be.

    Raises:
        InputError: Inception without its weights; a classifier of other data; latents without Inception.
    """
    if where == "none":
        return None
    if where == "inception":
        return inception_features(None)
    folder = Path(where) if where is not None else run_dir.parent / f"features-{config.dataset}"
    train = load_split(config, "train")
    if not isinstance(train, ImageSet):
        raise InputError("features", where, "inception for latents, or none: the classifier is trained on images")
    return train_features(train, folder)
