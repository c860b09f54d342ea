"""What training shows and writes: progress bars, metrics.jsonl and TensorBoard."""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard.writer import SummaryWriter

from diffusionblocks.checkpoint import write_text

METRICS = "metrics.jsonl"


class Log:
    """Rows of metrics by unit, shown and written as they come.

    A resumed run repeats the updates after its checkpoint, so rows past it are removed first.

    Args:
        run_dir: folder for metrics.jsonl and tensorboard/, or None.
        done: updates that each unit has had, by index.
        num_updates: updates of each unit in all.
        show: show progress bars.
    """

    def __init__(self, run_dir: Path | None, done: dict[int, int], num_updates: int, show: bool):
        self.run_dir, self.done = run_dir, done
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), disable=not show)
        self._tasks = {
            unit: self._progress.add_task(f"block {unit}", total=num_updates, completed=count, shown="")
            for unit, count in done.items()
        }
        self._writers: dict[int, SummaryWriter] = {}
        self._file = None

    def __enter__(self) -> "Log":
        if self.run_dir is not None:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self._drop_repeated(self.run_dir / METRICS)
            self._file = (self.run_dir / METRICS).open("a", encoding="utf-8")
            for unit, count in self.done.items():
                folder = self.run_dir / "tensorboard" / f"block-{unit}"
                self._writers[unit] = SummaryWriter(str(folder), purge_step=count + 1)
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._progress.stop()
        for writer in self._writers.values():
            writer.close()
        if self._file is not None:
            self._file.close()

    def say(self, message: str) -> None:
        """Show a line above the bars."""
        self._progress.console.print(message, highlight=False, soft_wrap=True)

    def row(self, row: dict[str, Any]) -> None:
        """Take a row with block, update, loss, images_per_second and further numbers."""
        unit, update = row["block"], row["update"]
        shown = f"loss {row['loss']:.4f}  {row['images_per_second']:.0f} images/s"
        self._progress.update(self._tasks[unit], completed=update, shown=shown)
        if self._file is not None:
            self._file.write(json.dumps({**row, "time": round(time.time(), 3)}) + "\n")
            self._file.flush()
            for name, value in row.items():
                if name not in ("block", "update"):
                    self._writers[unit].add_scalar(name, value, update)

    def _drop_repeated(self, path: Path) -> None:
        if not path.exists():
            return
        rows = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                continue  # a line that a killed process did not finish
            if row["block"] not in self.done or row["update"] <= self.done[row["block"]]:
                rows.append(line)
        write_text(path, "".join(f"{line}\n" for line in rows))
