"""What a run trains on and is scored on: a split of its data, and the facts about them that its networks need.

RUN/data.json is the facts, RUN/tokenizer the tokenizer of text.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from diffusionblocks import checkpoint
from diffusionblocks.config import read_json
from diffusionblocks.data.augment import RandAugment
from diffusionblocks.data.batches import (
    Batches,
    GenerationBatches,
    ImageBatches,
    LatentBatches,
    NextTokenBatches,
    TextBatches,
)
from diffusionblocks.data.images import ImageSet, absent_classes, check_trainable
from diffusionblocks.data.latents import LatentSet
from diffusionblocks.data.moments import mean_and_std
from diffusionblocks.data.sources import load_images
from diffusionblocks.data.text import TokenSet, load_text
from diffusionblocks.data.tokenizers import load_tokenizer
from diffusionblocks.errors import InputError
from diffusionblocks.marks import MASK, before
from diffusionblocks.run_config import AnyRun, CausalLmRun, DitRun, ImageRun, MaskedLmRun, TextRun

FACTS_FILE = "data.json"
TOKENIZER_FOLDER = "tokenizer"

Images = ImageSet | LatentSet
Data = Images | TokenSet


@dataclass(frozen=True)
class DataFacts:
    """What is kept of the training data in RUN/data.json.

    Attributes:
        classes: class names of images.
        mean, std: of each channel of images, where the family scales its data by them.
        num_samples: number of training samples.
        vocab_size: number of tokens of text.
        digest: of the tokens of text.
    """

    classes: tuple[str, ...] = ()
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    num_samples: int = 0
    vocab_size: int | None = None
    digest: str | None = None

    @classmethod
    def of(cls, config: AnyRun, data: Data) -> "DataFacts":
        """Measured on the training split; settings that are given go before."""
        if isinstance(data, TokenSet):
            return cls(num_samples=len(data), vocab_size=data.tokenizer.vocab_size, digest=data.digest)
        if not isinstance(config, DitRun):
            return cls(tuple(data.classes), num_samples=len(data))
        mean, std = config.data_mean, config.data_std
        if mean is None or std is None:
            measured = mean_and_std(data)
            mean, std = mean or measured[0], std or measured[1]
        return cls(tuple(data.classes), mean, std, len(data))

    def write(self, run_dir: Path) -> None:
        """Keep them in a run folder, or check that they are those it has.

        Raises:
            InputError: the run began with other data.
        """
        path = run_dir / FACTS_FILE
        if path.exists():
            if (stored := DataFacts.read(run_dir)) != self:
                names = [name for name, value in asdict(self).items() if asdict(stored)[name] != value]
                raise InputError("data", names[0], f"the data that the run began with, as in {path}", "use those")
            return
        checkpoint.write_text(path, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, run_dir: Path) -> "DataFacts":
        """Those of a run.

        Raises:
            InputError: no such file, or a broken one.
        """
        path = run_dir / FACTS_FILE
        values = read_json(path)
        try:
            mean, std = (None if values[name] is None else tuple(values[name]) for name in ("mean", "std"))
            text = values.get("vocab_size"), values.get("digest")
            return cls(tuple(values["classes"]), mean, std, values["num_samples"], *text)
        except (KeyError, TypeError) as error:
            raise InputError("file", str(path), f"what `dblocks train` writes ({error})") from None


def keep(data: Data, facts: DataFacts, run_dir: Path) -> None:
    """Keep in a run folder what its networks need of the data, or check that it is what the folder has.

    Raises:
        InputError: the run began with other data.
    """
    facts.write(run_dir)
    if isinstance(data, TokenSet) and not (run_dir / TOKENIZER_FOLDER).exists():
        data.tokenizer.save(run_dir / TOKENIZER_FOLDER)


def load_split(config: AnyRun, split: str, run_dir: Path | None = None) -> Data:
    """The images, latents or text of a split, checked against the recipe's size, channels and classes.

    Args:
        config: the run's settings.
        split: "train", "validation" or "test".
        run_dir: its folder, where its tokenizer is once the run has begun.

    Raises:
        InputError: what the data are and what the recipe expects.
    """
    return _load_text(config, split, run_dir) if isinstance(config, TextRun) else _load_images(config, split)


def _load_text(config: TextRun, split: str, run_dir: Path | None) -> TokenSet:
    kept = None if run_dir is None else run_dir / TOKENIZER_FOLDER
    return load_text(
        config.data,
        split,  # type: ignore[arg-type]
        config.seq_len,
        load_tokenizer(kept) if kept is not None and kept.exists() else config.tokenizer,
        vocab_size=config.vocab_size,
        text_field=config.text_field,
        encoding=config.encoding,
        split_by=config.split_by,
    )


def _load_images(config: ImageRun, split: str) -> Images:
    if config.dataset == "latents":
        if config.data_dir is None:
            raise InputError("data_dir", None, "a folder that `dblocks encode` made", "set data_dir")
        data: Images = LatentSet(Path(config.data_dir) / split)
        channels, height, width = data.shape
        if height != width:
            raise InputError("latents", data.shape, "latents of square images", "encode with a square crop")
    else:
        data = load_images(
            config.dataset,
            split,  # type: ignore[arg-type]
            config.data_dir,
            config.fold,
            seed=0,
            image_size=config.image_size if config.dataset == "folder" else None,
            num_channels=config.num_channels if config.dataset == "folder" else None,
        )
        height, channels = data.image_size, data.num_channels
    for name, found in (("image_size", height), ("num_channels", channels), ("num_classes", data.num_classes)):
        if getattr(config, name) not in (None, found):
            raise InputError(name, getattr(config, name), f"{found}, as in the {config.dataset} data")
    return data


def empty_batch(config: AnyRun) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a batch as the trainer gets it, without any data in them."""
    if isinstance(config, MaskedLmRun):
        shape = config.batch_size, config.seq_len
        return torch.full(shape, MASK), torch.zeros(shape, dtype=torch.long)
    if isinstance(config, CausalLmRun):
        shape = config.batch_size, config.seq_len
        return before(torch.zeros(shape, dtype=torch.long), torch.ones(shape, dtype=torch.bool))
    images = torch.empty(config.batch_size, config.num_channels, config.image_size, config.image_size)
    labels = torch.zeros(config.batch_size, dtype=torch.long)
    return (labels, images) if isinstance(config, DitRun) else (images, labels)


def training_batches(config: AnyRun, data: Data) -> tuple[Batches, Sequence[str]]:
    """Batches for the trainer, and the names of classes without a sample.

    Raises:
        InputError: a classifier's data with one class alone.
    """
    if isinstance(config, TextRun):
        assert isinstance(data, TokenSet)
        return TextBatches(data) if isinstance(config, MaskedLmRun) else NextTokenBatches(data), ()
    assert not isinstance(data, TokenSet)
    if isinstance(config, DitRun):
        absent = absent_classes(data.labels, data.classes)
        if isinstance(data, LatentSet):
            return LatentBatches(data), absent
        return GenerationBatches(data, config.flip), absent
    assert isinstance(data, ImageSet)
    absent = check_trainable(data)
    return ImageBatches(data, config.flip, RandAugment() if config.randaugment else None), absent
