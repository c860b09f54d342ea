"""What the tests of text data share: files made here, and a `datasets` whose cache is a folder of the test."""

import gzip
import json
from pathlib import Path

import numpy as np


def write(path: Path, content: str | bytes, packed: bool = False) -> str:
    """A file with exactly these bytes (or this text in UTF-8), or gzip of them; its name."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if packed else data)
    return str(path)


def json_lines(texts: list, column: str = "text") -> str:
    return "".join(json.dumps({"number": k, column: text}) + "\n" for k, text in enumerate(texts))


def words(count: int, seed: int = 0) -> str:
    """Characters of text8's alphabet, without a pattern."""
    symbols = np.array(list(" abcdefghijklmnopqrstuvwxyz"))
    return "".join(symbols[np.random.default_rng(seed).integers(0, 27, count)])
