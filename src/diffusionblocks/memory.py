"""Memory of a training step or a forward by kind, measured with PyTorch's MemTracker (imported in this file alone).

Kinds are weights, gradients, optimizer, activations and other (buffers, temporaries of the backward pass, averaged
weights, the batch). Each is its maximum over the second step, when Adam's state exists; `peak_total` is the maximum of
their sum, which is less than the sum of the maxima.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType, _ModState

KINDS = {
    "weights": (_MemRefType.PARAM,),
    "gradients": (_MemRefType.GRAD,),
    "optimizer": (_MemRefType.OPT,),
    "activations": (_MemRefType.ACT,),
    "other": (_MemRefType.BUFFER, _MemRefType.TEMP, _MemRefType.OTH),
}


@dataclass(frozen=True)
class MemoryReport:
    """Bytes by kind: of everything, and of the layers (with their conditioning, and without it).

    Attributes:
        total: maxima by kind, and "peak_total".
        layers: of the residual layers with their conditioning; activations are those kept from forward to backward.
        plain_layers: the same layers without conditioning.
    """

    total: dict[str, int]
    layers: dict[str, int]
    plain_layers: dict[str, int]

    def to_dict(self) -> dict[str, dict[str, int]]:
        """As plain data for JSON."""
        return asdict(self)


@dataclass
class Stage:
    """The operations from one event (a layer's forward begins, say) to the next.

    Attributes:
        event: "begin" or "end" of a layer's "forward" or "backward"; or what runs from here on, outside the layers.
        layer: whose event, by number; None outside the layers.
        operations: each one's name, and the bytes after it in the order of `KINDS`, then their sum.
    """

    event: str
    layer: int | None
    operations: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)


class _Tracker(MemTracker):
    """MemTracker that also keeps the bytes of each kind over time, on the device of the unit that is measured."""

    def __init__(self, unit: nn.Module, layers: Iterable[nn.Module] = ()) -> None:
        super().__init__()
        self.device = next(unit.parameters()).device
        self.stages = [Stage("forward", None)]
        self._phase, self._operation = "forward", ""
        self._numbers = {layer: number for number, layer in enumerate(layers)}

    @property
    def maxima(self) -> dict[str, int]:
        """The largest size of each kind so far, and "peak_total"."""
        sizes = [sizes for stage in self.stages for _, sizes in stage.operations]
        return dict(zip((*KINDS, "peak_total"), map(max, zip(*sizes, strict=True)), strict=True))

    def note_sizes(self) -> None:
        now = self._curr_mem_snap.get(self.device, {})
        sizes = [sum(now.get(kind, 0) for kind in kinds) for kinds in KINDS.values()]
        # Clipping, the optimizer and the averages have stages of their own.
        phase = "backward" if self._mod_tracker.is_bw else "optimizer" if self._in_opt else "forward"
        if phase != self._phase:
            self._phase = phase
            self.stages.append(Stage(phase, None))
        self.stages[-1].operations.append((self._operation, (*sizes, now.get("Total", 0))))

    def start_over(self) -> None:
        """Forget the sizes and the modules' snapshots, before another step."""
        self.stages, self._phase = [Stage("forward", None)], "forward"
        self.reset_mod_stats()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._operation = str(func)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _update_peak_stats(self, peak_state: Any) -> None:
        # In place of MemTracker's own peaks of every module, which cost a loop over all modules for every operation.
        self.note_sizes()

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        # A micro-batch after the first calls the root again, which MemTracker takes only with fresh snapshots.
        if not self._mod_tracker.is_bw and len(self._mod_tracker.parents) == 2 and module in self.memory_tracking:
            self.reset_mod_stats()
        super()._pre_fw_hook(module, inputs)
        self._next_stage("begin forward", module)

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        super()._post_fw_hook(module, inputs, outputs)
        self._next_stage("end forward", module)

    def _pre_bw_hook(self, module: nn.Module, args: Any) -> None:
        super()._pre_bw_hook(module, args)
        self._next_stage("begin backward", module)

    def _post_bw_hook(self, module: nn.Module, args: Any) -> None:
        super()._post_bw_hook(module, args)
        # Before that, the backward of a layer ends where that of the one below it begins.
        if self._numbers.get(module) == 0:
            self._next_stage("end backward", module)

    def _next_stage(self, event: str, module: nn.Module) -> None:
        if module in self._numbers:
            self.stages.append(Stage(event, self._numbers[module]))


class StepMeter:
    """Measures the memory of the first two training steps of a unit while they are done for real.

    Args:
        unit: what trains: a block or a plain network.
        optimizer: its optimizer.
        others: further tensors that live through the step (averaged weights).
    """

    def __init__(self, unit: nn.Module, optimizer: torch.optim.Optimizer, others: Iterable[Tensor] = ()):
        self.unit, self.optimizer = unit, optimizer
        self.steps = 0
        self._tracker = _Tracker(unit, unit.layers)  # type: ignore[arg-type]
        self._tracker.track_external(unit, optimizer, *others)

    @property
    def wants_steps(self) -> bool:
        """True until two steps have been seen."""
        return self.steps < 2

    @property
    def stages(self) -> list[Stage]:
        """The last step over time."""
        return self._tracker.stages

    @contextlib.contextmanager
    def step(self, *batch: Tensor) -> Iterator[None]:
        """Measure one training step on this batch."""
        self._tracker.start_over()
        self._tracker.track_external(*batch)
        with self._tracker:
            yield
            self._tracker.note_sizes()
        self.steps += 1

    def report(self, plain_forward: Callable[[], Any], forward: Callable[[], Any]) -> MemoryReport:
        """The report of the second step.

        Args:
            plain_forward: a forward on the same batch without conditioning.
            forward: the forward with it. They run once more, to see what the layers keep for the backward pass.
        """
        layers, conditioning = list(self.unit.layers), conditioning_of(self.unit)  # type: ignore[arg-type]
        plain = self._static_bytes(layers)
        conditioned = self._static_bytes([*layers, *conditioning])
        kept = kept_activations(self.unit, [layers, conditioning], forward)
        plain_kept = kept_activations(self.unit, [layers], plain_forward) if conditioning else kept
        return MemoryReport(
            total=self._tracker.maxima,
            layers={**conditioned, "activations": kept},
            plain_layers={**plain, "activations": plain_kept},
        )

    def _static_bytes(self, modules: list[nn.Module]) -> dict[str, int]:
        parameters = [p for module in modules for p in module.parameters()]
        states = [self.optimizer.state.get(p, {}) for p in parameters]
        return {
            "weights": sum(p.nbytes for p in parameters),
            "gradients": sum(p.grad.nbytes for p in parameters if p.grad is not None),
            "optimizer": sum(t.nbytes for state in states for t in state.values() if isinstance(t, Tensor)),
        }


def conditioning_of(unit: nn.Module) -> list[nn.Module]:
    """The conditioning of a block, nothing for a plain network."""
    return [module for name, module in unit.named_children() if name == "conditioning"]


def kept_activations(unit: nn.Module, groups: list[list[nn.Module]], forward: Callable[[], Any]) -> int:
    """Bytes of activations that the modules have added by the end of their forward and that the backward will need.

    Args:
        unit: the network.
        groups: lists of consecutive modules; a group counts from before its first to after its last module.
        forward: runs the network with gradients; its result is kept until the count is taken.
    """
    tracker = _Tracker(unit)
    tracker.track_external(unit)
    with tracker:
        result = forward()
    total = 0
    for group in groups:
        if group:
            before = _activation_bytes(tracker, group[0], _ModState.PRE_FW)
            total += _activation_bytes(tracker, group[-1], _ModState.POST_FW) - before
    del result
    return total


def forward_memory(unit: nn.Module, forward: Callable[[], Any]) -> dict[str, int]:
    """Maxima by kind over one forward (inference): weights, activations, other, peak_total, in bytes."""
    tracker = _Tracker(unit)
    tracker.track_external(unit)
    tracker.note_sizes()
    with tracker:
        forward()
    return tracker.maxima


def loading_memory(unit: nn.Module, run: Callable[[Callable[[nn.Module], None]], Any]) -> dict[str, int]:
    """Maxima by kind while networks come and go, as when blocks are read one after the other.

    Args:
        unit: any module on the device that is measured; it is counted too.
        run: what is measured; it is given a function to call with each network that it has loaded. Weights count from
            then on until they are let go of.
    """
    tracker = _Tracker(unit)
    tracker.track_external(unit)
    with tracker:

        def watch(network: nn.Module) -> None:
            tracker.track_external(network)
            tracker.note_sizes()

        run(watch)
    return tracker.maxima


def _activation_bytes(tracker: _Tracker, module: nn.Module, state: Any) -> int:
    snapshots = tracker.memory_tracking[module].snapshots[state]
    return snapshots[0].get(tracker.device, {}).get(_MemRefType.ACT, 0)
