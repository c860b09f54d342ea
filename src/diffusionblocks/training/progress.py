"""What training shows and writes: progress bars, metrics.jsonl and TensorBoard."""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard.writer import SummaryWriter

from diffusionblocks.checkpoint import write_text

METRICS = "metrics.jsonl"


class Log:
    """Rows of metrics by unit, shown and written as they come.

    A resumed run repeats the updates after its checkpoint, so rows past it are removed first.

    Args:
        run_dir: folder for UNIT/metrics.jsonl and tensorboard/UNIT, or None. A unit has files of its own, since blocks
            may train in several processes at once.
        units: name of each unit and the updates it has had, by index.
        num_updates: updates of each unit in all.
        show: show progress bars.
    """

    def __init__(self, run_dir: Path | None, units: dict[int, tuple[str, int]], num_updates: int, show: bool):
        self.run_dir, self.units = run_dir, units
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), disable=not show)
        self._tasks = {
            unit: self._progress.add_task(name, total=num_updates, completed=count, shown="")
            for unit, (name, count) in units.items()
        }
        self._writers: dict[int, SummaryWriter] = {}
        self._files: dict[int, TextIO] = {}

    def __enter__(self) -> "Log":
        if self.run_dir is not None:
            for unit, (name, count) in self.units.items():
                folder = name.replace(" ", "-")
                path = self.run_dir / folder / METRICS
                path.parent.mkdir(parents=True, exist_ok=True)
                _drop_repeated(path, count)
                self._files[unit] = path.open("a", encoding="utf-8")
                self._writers[unit] = SummaryWriter(str(self.run_dir / "tensorboard" / folder), purge_step=count + 1)
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._progress.stop()
        for writer in self._writers.values():
            writer.close()
        for file in self._files.values():
            file.close()

    def say(self, message: str) -> None:
        """Show a line above the bars."""
        self._progress.console.print(message, highlight=False, soft_wrap=True)

    def row(self, row: dict[str, Any]) -> None:
        """Take a row with block, update, loss, images_per_second and further numbers."""
        unit, update = row["block"], row["update"]
        shown = f"loss {row['loss']:.4f}  {row['images_per_second']:.0f} images/s"
        self._progress.update(self._tasks[unit], completed=update, shown=shown)
        if unit in self._files:
            self._files[unit].write(json.dumps({**row, "time": round(time.time(), 3)}) + "\n")
            self._files[unit].flush()
            for name, value in row.items():
                if name not in ("block", "update"):
                    self._writers[unit].add_scalar(name, value, update)


def _drop_repeated(path: Path, done: int) -> None:
    """Remove the rows past the update that a run goes on from."""
    if not path.exists():
        return
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue  # a line that a killed process did not finish
        if row["update"] <= done:
            rows.append(line)
    write_text(path, "".join(f"{line}\n" for line in rows))
