"""What the arguments of the command line stand for: text in, values out, or a refusal in one line."""

import argparse
import math

from diffusionblocks.errors import InputError


def refuse_foreign(arguments: argparse.Namespace, flags: dict[str, tuple[str, ...]], family: str) -> None:
    """Refuse a flag that is given and that the family does not have."""
    for other, names in flags.items():
        for name in names:
            value = getattr(arguments, name)
            if value is not None and name not in flags.get(family, ()):
                raise InputError(name, value, f"no such flag for a run of the family {family}", f"{other} has it")


def steps_of(arguments: argparse.Namespace) -> int | None:
    return whole_or_none("num_sampling_steps", arguments.num_sampling_steps)


def guidance_of(text: str | None) -> float | tuple[float, ...] | None:
    """One scale, or one for each block: 2.0, or 1,2,1."""
    if text is None:
        return None
    try:
        scales = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError("guidance", text, "a number, or one for each block such as 1,2,1") from None
    if not all(math.isfinite(scale) and scale >= 0 for scale in scales):
        raise InputError("guidance", text, "finite numbers of at least 0")
    return scales[0] if len(scales) == 1 else scales


def number_of(setting: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(setting, text, "a number above 0") from None


def whole_or_none(setting: str, text: str | None) -> int | None:
    return None if text is None else whole(setting, text, 1)


def whole_list(setting: str, text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1: 1,2,4; none is none of them."""
    return () if text == "none" else tuple(whole(setting, part, 1) for part in text.split(","))


def whole(setting: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or value < least:
        raise InputError(setting, text, f"a whole number of at least {least}")
    return value


def device_of(name: str) -> str:
    """The device to use.

    Raises:
        InputError: not a device, or one that this machine does not have.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError("device", name, "a device of this machine", str(error).splitlines()[0]) from None
    return name
