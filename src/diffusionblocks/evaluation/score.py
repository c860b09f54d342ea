"""Score a run folder on a split and keep the result in it."""

from pathlib import Path
from typing import Any

from diffusionblocks.evaluation.classification import EvalOptions, evaluate_blocks, evaluate_plain
from diffusionblocks.model import BlockwiseModel
from diffusionblocks.training.run import load_config, load_split, load_trained, write_result


def score_run(
    run_dir: Path,
    split: str,
    options: EvalOptions | None = None,
    data_dir: str | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Evaluate a run's newest checkpoints on every sample of a split; written to RUN/eval-SPLIT.json.

    Args:
        run_dir: the run.
        split: "train", "validation" or "test".
        options: how to decode.
        data_dir: where the data are now, if not where they were.
        device: where to compute.

    Returns:
        What `evaluate_blocks` or `evaluate_plain` gives, with split, images (their number), method, and the updates of
        each unit.
    """
    config = load_config(run_dir)
    where = config if data_dir is None else config.model_copy(update={"data_dir": data_dir})
    images = load_split(where, split)
    model, updates = load_trained(run_dir, config)
    model.to(device)
    score = evaluate_blocks if isinstance(model, BlockwiseModel) else evaluate_plain
    result = score(model, images, options or EvalOptions())  # type: ignore[operator]
    result |= {"split": split, "images": len(images), "method": config.method, "updates": updates}
    write_result(run_dir, f"eval-{split}.json", result)
    return result
