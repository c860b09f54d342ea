"""The memory planner: bytes by kind of one update, for every method and number of blocks, with nothing allocated.

The two updates that `memory` measures are done by the same code on fake tensors, which have shapes and no data.
Networks of 3 and 4 layers are traced; the bytes after every operation are linear in the number of layers, so those of
a deeper network follow exactly, and each kind's maximum is taken over the operations after that.
"""

import contextlib
import functools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import masking_utils
from transformers.initialization import no_init_weights

from diffusionblocks import checkpoint
from diffusionblocks.block import edges_of
from diffusionblocks.families import block_class_of
from diffusionblocks.memory import KINDS, MemoryReport, Stage
from diffusionblocks.partition import check_count, split_layers
from diffusionblocks.run_config import AnyRun, RecurrentLmRun
from diffusionblocks.training.data import empty_batch
from diffusionblocks.training.networks import backbone_config, blockwise_of, control
from diffusionblocks.training.trainer import UnitState

# From 3 layers on there is a first, a last, and one between them that has a neighbour on both sides.
TRACED = (3, 4)

METHODS = ("end-to-end", "checkpointing", "shallow", "shallow-ensemble", "blocks")
RECURRENT = ("end-to-end", "full-bptt", "unlooped", "blocks")
"""Those of a recurrent network, which is one block."""

Label = tuple[Any, ...]
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class PlanRow:
    """Predicted memory of one update of a method.

    Attributes:
        method: its name.
        num_blocks: B; 1 for the whole network.
        num_layers: layers of the network, or of the largest block, that an update trains.
        report: bytes by kind.
        ratio: the total's "peak_total" and kinds, each divided by that of the network end to end.
        layer_ratio: the same for the residual layers alone, with their conditioning.
    """

    method: str
    num_blocks: int
    num_layers: int
    report: MemoryReport
    ratio: dict[str, float]
    layer_ratio: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Trace:
    """Two fake updates: their report, and the bytes over time of the second."""

    report: MemoryReport
    stages: list[Stage]


def precision_here(config: AnyRun) -> str:
    """The precision that training on this machine would have: what "auto" comes to."""
    if config.precision != "auto":
        return config.precision
    return "bf16" if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else "fp32"


def predict(config: AnyRun) -> MemoryReport:
    """Predicted memory of one update of the largest unit that the config's method trains.

    Args:
        config: the settings; nothing is read from a data set, and no network is allocated.

    Returns:
        Bytes by kind, as `StepMeter` would measure them on the CPU.
    """
    layers = config.depth()
    if isinstance(config, RecurrentLmRun):  # its layers are of three kinds, so it is traced as it is
        whole = config.model_copy(update={"precision": precision_here(config), "data": ""})
        return _trace(whole, layers).report  # type: ignore[arg-type]  # as below
    traced = _traced_settings(config)

    def trace(num_layers: int) -> _Trace:
        return _trace(traced, num_layers)  # type: ignore[arg-type]  # frozen, so hashable, which pyright does not see

    if layers <= max(TRACED):
        return trace(layers).report
    few, more = (trace(n) for n in TRACED)
    total = _extrapolated_maxima(few.stages, more.stages, layers)
    if total is None:
        return trace(layers).report
    parts = (
        _extrapolated(getattr(few.report, part), getattr(more.report, part), layers)
        for part in ("layers", "plain_layers")
    )
    return MemoryReport(total, *parts)


def plan(config: AnyRun, num_blocks: Sequence[int] | None = None) -> list[PlanRow]:
    """Predicted memory of every method and number of blocks.

    Args:
        config: the settings.
        num_blocks: numbers of blocks; None takes the divisors of the number of layers and the config's own.

    Returns:
        End to end and checkpointing, then shallow, its ensemble (of classifiers) and blocks for each number of blocks;
        of a recurrent network its methods.

    Raises:
        InputError: a number of blocks that does not fit the layers or the noise law.
    """
    if isinstance(config, RecurrentLmRun):
        return _rows([config.model_copy(update={"method": method}) for method in RECURRENT])
    layers = config.num_layers
    if num_blocks is None:
        num_blocks = sorted({b for b in range(1, layers + 1) if layers % b == 0} | {config.num_blocks})
    # Checked first, so that bad input costs no time.
    each = [_with_blocks(config, b) for b in num_blocks]
    cases = [
        config.model_copy(update={"method": method, "num_blocks": 1, "layer_split": None}) for method in METHODS[:2]
    ]
    ensembles = block_class_of(config.family).ensemble is not None
    for method in METHODS[2:] if ensembles else ("shallow", "blocks"):
        # Shallow networks of all the layers are the network end to end.
        cases += [one.model_copy(update={"method": method}) for one in each if method == "blocks" or one.num_blocks > 1]
    return _rows(cases)


def _rows(cases: Sequence[AnyRun]) -> list[PlanRow]:
    """A row for each; the first is end to end."""
    rows, end_to_end = [], predict(cases[0])
    for case in cases:
        report = predict(case)
        ratio, layer_ratio = (_ratio(getattr(report, p), getattr(end_to_end, p)) for p in ("total", "layers"))
        rows.append(PlanRow(case.method, case.num_blocks, case.depth(), report, ratio, layer_ratio))
    return rows


def write_plan(path: Path, rows: Sequence[PlanRow], config: AnyRun) -> Path:
    """Write a plan as JSON: the settings and, for every row, bytes and ratios."""
    result = {
        "config": config.model_dump(mode="json"),
        "precision": precision_here(config),
        "kernels": "CPU",
        "rows": [row.to_dict() for row in rows],
    }
    checkpoint.write_text(path, json.dumps(result, indent=1))
    return path


def _with_blocks(config: AnyRun, num_blocks: int) -> AnyRun:
    """The config with another number of blocks, cut evenly unless it is the config's own."""
    check_count("num_blocks", num_blocks)
    split = config.layer_split if num_blocks == config.num_blocks else None
    split_layers(config.num_layers, num_blocks, split)
    config = config.model_copy(update={"num_blocks": num_blocks, "layer_split": split, "num_sampling_steps": None})
    edges_of(config)
    return config


def _traced_settings(config: AnyRun) -> AnyRun:
    """The settings with all that does not change the bytes of an update made the same, so that traces are shared."""
    blocks = config.method == "blocks"
    return config.model_copy(
        update={
            "method": "blocks" if blocks else "end-to-end",
            "checkpointing": config.checkpointing or config.method == "checkpointing",
            "precision": precision_here(config),
            "num_blocks": 1,
            "layer_split": None,
            "num_sampling_steps": None,
            "num_layers": 1,
            "data_dir": None,
        }
    )


@functools.lru_cache(maxsize=64)
def _trace(config: AnyRun, num_layers: int) -> _Trace:
    """Two updates of a unit of so many layers on fake tensors."""
    mode, training = FakeTensorMode(), config.training()
    unit = _fake_unit(config, num_layers, mode)
    with mode, _no_packed_texts():
        state = UnitState.prepare(unit, training)
        state.measure()
        for _ in range(2):
            x, y = empty_batch(config)
            state.update(x, y, training.lr, training)
        assert state.meter is not None
        stages = state.meter.stages
        return _Trace(state.report(x, y, training), stages)


@contextlib.contextmanager
def _no_packed_texts() -> Iterator[None]:
    """Inside, decoders take a row for one text, as ours are.

    They look at the positions for several texts packed into a row. Fake ones say nothing, so a mask would be made.
    """
    before = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None  # type: ignore[assignment]
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = before


def _fake_unit(config: AnyRun, num_layers: int, mode: FakeTensorMode) -> nn.Module:
    """A block with all the layers, or the plain network, without data."""
    base, blockwise = backbone_config(config, num_layers), blockwise_of(config)
    block_class = block_class_of(config.family)
    targets = block_class.make_targets(blockwise, base)
    with mode, no_init_weights():
        backbone = block_class.framework.build(block_class.class_of(base), base)
        if config.method != "blocks" and block_class.plain is not None:
            return control(config, backbone)
        unit = block_class(backbone, blockwise, 0, None if targets is None else mode.from_tensor(targets))
    # The masses of its interval are numbers, which no fake tensor has: a first draw computes and caches them.
    unit.draw(1, torch.Generator())
    return unit


def _extrapolated_maxima(few: list[Stage], more: list[Stage], layers: int) -> dict[str, int] | None:
    """Maxima by kind at another number of layers; None if the two traces do not consist of the same operations."""
    first, second = _grouped(few, TRACED[0]), _grouped(more, TRACED[1])
    if first.keys() != second.keys():
        return None
    beyond, sizes = layers - TRACED[0], list[Sizes]()
    for label, ones in first.items():
        others = second[label]
        if len(ones) != len(others):
            ones, others = [_largest(ones)], [_largest(others)]
        for one, other in zip(ones, others, strict=True):
            sizes.append(tuple(a + (b - a) * beyond for a, b in zip(one, other, strict=True)))
    return dict(zip((*KINDS, "peak_total"), _largest(sizes), strict=True))


def _largest(sizes: list[Sizes]) -> Sizes:
    """The maximum of each kind."""
    return tuple(map(max, zip(*sizes, strict=True)))


def _grouped(stages: list[Stage], num_layers: int) -> dict[Label, list[Sizes]]:
    """Bytes after every operation, named so that the same one is found in a network of another depth.

    Layers are counted from both ends. What lies between the second and the last but one is linear in the layer's
    number, so it is never above both of them. Operations that a stage has once a layer or parameter (clipping has) are
    one, with their maximum.
    """
    grouped, seen = defaultdict[Label, list[Sizes]](list), Counter[Label]()
    for stage in stages:
        occurrence = seen[stage.event, stage.layer]
        seen[stage.event, stage.layer] += 1
        for end, distance in _distances(stage.layer, num_layers):
            if distance < 2:
                for operation, sizes in stage.operations:
                    grouped[stage.event, occurrence, end, distance, operation].append(sizes)
    return grouped


def _distances(layer: int | None, num_layers: int) -> list[tuple[str, int]]:
    return [("", 0)] if layer is None else [("first", layer), ("last", num_layers - 1 - layer)]


def _extrapolated(few: dict[str, int], more: dict[str, int], layers: int) -> dict[str, int]:
    return {kind: few[kind] + (more[kind] - few[kind]) * (layers - TRACED[0]) for kind in few}


def _ratio(part: dict[str, int], whole: dict[str, int]) -> dict[str, float]:
    return {kind: part[kind] / whole[kind] for kind in part if whole[kind]}
