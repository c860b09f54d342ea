"""Each operation against NumPy; RandAugment's draws are uniform, and a sample's result depends on its key alone."""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import chi2

from diffusionblocks.data.augment import OPS, RandAugment, apply_op, augment, augment_batch, draw_ops
from diffusionblocks.errors import InputError

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (12, 16), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (12, 16, 3), dtype=np.uint8)
BOTH = pytest.mark.parametrize("pixels", [GREY, COLOUR], ids=["grey", "colour"])


def applied(pixels: np.ndarray, op, strength: float, sign: int = 1) -> np.ndarray:
    image = apply_op(Image.fromarray(pixels), op, strength, sign)
    result = np.asarray(image)
    assert result.shape == pixels.shape
    assert result.dtype == np.uint8
    return result


def test_the_fourteen_operations():
    assert len(OPS) == len(set(OPS)) == 14
    assert RandAugment() == RandAugment(num_ops=2, magnitude=9, num_bins=31)
    assert RandAugment().strength == 0.3


@BOTH
@pytest.mark.parametrize("op", [op for op in OPS if op not in ("AutoContrast", "Equalize")])
def test_magnitude_zero_changes_nothing(pixels, op):
    for sign in (1, -1):
        assert np.array_equal(applied(pixels, op, RandAugment(magnitude=0).strength, sign), pixels)


@BOTH
@pytest.mark.parametrize("op", [op for op in OPS if op != "Identity"])
def test_full_magnitude_changes_something(pixels, op):
    pixels = np.tile(pixels, (2, 2) + (1,) * (pixels.ndim - 2)) // 2 + 20
    unchanged = np.array_equal(applied(pixels, op, 1.0), pixels)
    assert unchanged == (op == "Color" and pixels.ndim == 2)


@BOTH
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("op", "axis", "side"), [("TranslateX", 1, 16), ("TranslateY", 0, 12)])
def test_translate(pixels, sign, op, axis, side):
    shift = int(150 / 331 * side * 0.7) * sign
    wanted = np.roll(pixels, shift, axis)
    blank = np.flatnonzero(np.arange(side) < shift if sign > 0 else np.arange(side) >= side + shift)
    wanted[(slice(None),) * axis + (blank,)] = 0
    assert abs(shift) in (3, 5)
    assert np.array_equal(applied(pixels, op, 0.7, sign), wanted)


@BOTH
@pytest.mark.parametrize("sign", [1, -1])
def test_shear(pixels, sign):
    for op, turned in (("ShearX", pixels), ("ShearY", pixels.swapaxes(0, 1))):
        wanted = np.zeros_like(turned)
        rows, columns = turned.shape[:2]
        for y in range(rows):
            for x in range(columns):
                source = int(np.floor(x + 0.5 + sign * 0.3 * 0.5 * (y + 0.5)))
                if 0 <= source < columns:
                    wanted[y, x] = turned[y, source]
        wanted = wanted if op == "ShearX" else wanted.swapaxes(0, 1)
        assert np.array_equal(applied(pixels, op, 0.5, sign), wanted)


@pytest.mark.parametrize("sign", [1, -1])
def test_rotate_turns_about_the_centre(sign):
    pixels = np.random.default_rng(1).integers(0, 256, (15, 15), dtype=np.uint8)
    angle = np.deg2rad(30 * 0.5 * sign)
    wanted = np.zeros_like(pixels)
    for y in range(15):
        for x in range(15):
            # Counter-clockwise by `angle` in a picture whose y axis points down.
            source_x = np.cos(angle) * (x - 7) - np.sin(angle) * (y - 7) + 7.5
            source_y = np.sin(angle) * (x - 7) + np.cos(angle) * (y - 7) + 7.5
            if 0 <= source_x < 15 and 0 <= source_y < 15:
                wanted[y, x] = pixels[int(source_y), int(source_x)]
    found = applied(pixels, "Rotate", 0.5, sign)
    assert found[7, 7] == pixels[7, 7]
    assert (found == wanted).mean() > 0.98


def blend(degenerate: np.ndarray, pixels: np.ndarray, factor: float) -> np.ndarray:
    return np.clip(degenerate + factor * (pixels.astype(float) - degenerate), 0, 255)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_enhancements(sign, strength):
    factor = 1 + sign * 0.9 * strength
    luma = np.rint(COLOUR @ np.array([0.299, 0.587, 0.114]))
    degenerates = {
        "Brightness": np.zeros(COLOUR.shape),
        "Color": np.repeat(luma[..., None], 3, axis=-1),
        "Contrast": np.full(COLOUR.shape, np.floor(luma.mean() + 0.5)),
    }
    for op, degenerate in degenerates.items():
        wanted = blend(degenerate, COLOUR, factor)
        assert np.abs(applied(COLOUR, op, strength, sign) - wanted).max() <= 2, op
    assert np.abs(applied(GREY, "Brightness", strength, sign) - blend(np.zeros(GREY.shape), GREY, factor)).max() <= 1


@pytest.mark.parametrize("sign", [1, -1])
def test_sharpness(sign):
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    smooth = GREY.astype(float)
    for y in range(1, 11):
        for x in range(1, 15):
            smooth[y, x] = (GREY[y - 1 : y + 2, x - 1 : x + 2] * kernel).sum()
    assert np.abs(applied(GREY, "Sharpness", 0.5, sign) - blend(smooth, GREY, 1 + sign * 0.45)).max() <= 1.5


@BOTH
def test_posterize(pixels):
    for magnitude, bits in ((0, 8), (9, 7), (15, 6), (30, 4)):
        strength = RandAugment(magnitude=magnitude).strength
        assert np.array_equal(applied(pixels, "Posterize", strength), pixels >> (8 - bits) << (8 - bits))


@BOTH
def test_solarize(pixels):
    for strength, threshold in ((0.0, 256), (0.3, 179), (0.5, 128), (1.0, 0)):
        wanted = np.where(pixels >= threshold, 255 - pixels, pixels)
        assert np.array_equal(applied(pixels, "Solarize", strength), wanted)


@BOTH
def test_autocontrast(pixels):
    narrow = pixels // 3 + 50
    low, high = narrow.min((0, 1)).astype(float), narrow.max((0, 1))
    assert np.abs(applied(narrow, "AutoContrast", 0.3) - (narrow - low) * 255 / (high - low)).max() <= 1


@BOTH
def test_equalize(pixels):
    # 52 dark values, five of each: equalized, they are spread evenly over the range.
    values = RNG.permutation(np.repeat(np.arange(52, dtype=np.uint8), 5)).reshape(20, 13)
    values = values if pixels is GREY else np.repeat(values[..., None], 3, axis=-1)
    assert np.array_equal(applied(values, "Equalize", 0.3), values * 5)


def batch(channels: int, count: int = 10) -> torch.Tensor:
    pixels = np.random.default_rng(5).integers(0, 256, (count, channels, 9, 9), dtype=np.uint8)
    return torch.from_numpy(pixels)


def test_flip():
    images = batch(3, 40)
    keys = [(0, 0, 0, row) for row in range(40)]
    flipped = augment_batch(images, keys, flip=True, randaugment=None)
    turned = [torch.equal(new, old.flip(-1)) for old, new in zip(images, flipped, strict=True)]
    kept = [torch.equal(new, old) for old, new in zip(images, flipped, strict=True)]
    assert all(a != b for a, b in zip(turned, kept, strict=True))
    assert 10 <= sum(turned) <= 30
    assert torch.equal(augment_batch(images, keys, flip=False, randaugment=None), images)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_key_alone_decides(channels):
    images, before = batch(channels), batch(channels)
    keys = [(3, 1, 2, row) for row in range(10)]
    whole = augment_batch(images, keys, True, RandAugment())
    assert torch.equal(images, before)
    assert whole.shape == images.shape
    assert whole.dtype == torch.uint8
    assert whole.is_contiguous()
    order = [7, 2, 9, 4]
    torch.manual_seed(99)
    np.random.default_rng().random()
    part = augment_batch(images[order], [keys[row] for row in order], True, RandAugment())
    assert torch.equal(part, whole[order])
    one = augment(images[4], np.random.default_rng(keys[4]), True, RandAugment())
    assert torch.equal(one, whole[4])
    other_epoch = augment_batch(images, [(3, 1, 3, row) for row in range(10)], True, RandAugment())
    assert sum(torch.equal(a, b) for a, b in zip(whole, other_epoch, strict=True)) <= 5


def test_augment_applies_the_drawn_operations_in_order():
    image = batch(3, 1)[0]
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rng.random()
        wanted = Image.fromarray(image.permute(1, 2, 0).numpy())
        for op, sign in draw_ops(rng, RandAugment(num_ops=3)):
            wanted = apply_op(wanted, op, 0.3, sign)
        found = augment(image, np.random.default_rng(seed), False, RandAugment(num_ops=3))
        assert np.array_equal(found.permute(1, 2, 0).numpy(), np.asarray(wanted))


def test_operations_and_signs_are_uniform():
    draws = [pair for row in range(3500) for pair in draw_ops(np.random.default_rng((0, 0, 0, row)), RandAugment())]
    counts = Counter(draws)
    assert len(counts) == 28
    expected = len(draws) / 28
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi2.ppf(1e-4, 27) < statistic < chi2.ppf(1 - 1e-4, 27)
    pairs = Counter(
        tuple(op for op, _ in draw_ops(np.random.default_rng((1, row)), RandAugment())) for row in range(3500)
    )
    assert len(pairs) == 14 * 14


def test_refusals():
    for arguments in ({"num_ops": 0}, {"magnitude": 31}, {"magnitude": -1}, {"num_bins": 1, "magnitude": 0}):
        with pytest.raises(InputError, match=f"randaugment.{next(iter(arguments))}="):
            RandAugment(**arguments)
    images, rng = batch(3, 2), np.random.default_rng(0)
    for bad in (images[0].float(), images, images[0, :2]):
        with pytest.raises(InputError, match="images"):
            augment(bad, rng, True, None)
    for keys in ([(0, 1)], [(0, 1), (0, -1)], [(0, 1), (0, 1, 2)], [(), ()]):
        with pytest.raises(InputError, match="keys"):
            augment_batch(images, keys, True, None)
