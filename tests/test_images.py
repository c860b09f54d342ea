"""ImageSet refuses what training could not use; read_image turns every kind of file into the declared pixels."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffusionblocks.data.images import (
    ImageSet,
    check_labels,
    check_trainable,
    decode_images,
    read_image,
    split_rows,
    to_float,
    to_pixels,
)
from diffusionblocks.errors import InputError


def image_set(labels: list[int], classes: int = 3) -> ImageSet:
    images = torch.arange(len(labels) * 4, dtype=torch.uint8).reshape(-1, 1, 2, 2)
    return ImageSet(images, torch.tensor(labels), tuple("abcdefgh"[:classes]))


def test_image_set_properties_and_subset():
    data = image_set([0, 2, 1, 2])
    assert (len(data), data.num_classes, data.image_size, data.num_channels) == (4, 3, 2, 1)
    for indices in ([3, 0], np.array([3, 0]), torch.tensor([3, 0], dtype=torch.int32)):
        part = data.subset(indices)
        assert part.labels.tolist() == [2, 0]
        assert torch.equal(part.images, data.images[[3, 0]])
        assert part.classes == data.classes
    part.images[0] = 99
    assert data.images[3, 0, 0, 0] == 12


@pytest.mark.parametrize("indices", [[], [4], [-1], [0.5], [True, False, True, True], [[0]]])
def test_subset_refuses(indices):
    with pytest.raises(InputError, match="indices"):
        image_set([0, 2, 1, 2]).subset(indices)


GOOD = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "classes", "names"),
    [
        (GOOD.float(), torch.zeros(2, dtype=torch.int64), ("a",), "images.dtype"),
        (GOOD[0], torch.zeros(1, dtype=torch.int64), ("a",), "images.shape"),
        (GOOD[:0], torch.zeros(0, dtype=torch.int64), ("a",), "images.shape"),
        (GOOD[..., :3], torch.zeros(2, dtype=torch.int64), ("a",), "images.shape"),
        (GOOD.expand(2, 4, 4, 4), torch.zeros(2, dtype=torch.int64), ("a",), "images.shape"),
        (GOOD, torch.zeros(2, dtype=torch.int32), ("a",), "labels.dtype"),
        (GOOD, torch.zeros(3, dtype=torch.int64), ("a",), "labels.shape"),
        (GOOD, torch.zeros(2, dtype=torch.int64), (), "classes"),
    ],
)
def test_image_set_refuses(images, labels, classes, names):
    with pytest.raises(InputError) as caught:
        ImageSet(images, labels, classes)
    assert caught.value.setting == names
    assert "\n" not in str(caught.value)


def test_bad_labels_are_named_by_row():
    with pytest.raises(InputError, match=r"labels\[row 2\]=3: expected a label in 0\.\.2 .*\(2 of 5\)"):
        image_set([0, 1, 3, 2, -1])
    with pytest.raises(InputError, match=r"some file\[row 1\]=-1"):
        check_labels(torch.tensor([0, -1]), 2, "some file")


def test_check_trainable():
    assert check_trainable(image_set([0, 1, 2])) == ()
    assert check_trainable(image_set([2, 0, 2], classes=5)) == ("b", "d", "e")
    with pytest.raises(InputError, match=r"'b'.*one class only"):
        check_trainable(image_set([1, 1, 1]))


def test_to_float():
    scaled = to_float(torch.tensor([[0, 255], [51, 102]], dtype=torch.uint8))
    assert scaled.dtype == torch.float32
    torch.testing.assert_close(scaled, torch.tensor([[-1.0, 1.0], [-0.6, -0.2]]))
    with pytest.raises(InputError, match="dtype"):
        to_float(scaled)


def test_split_rows_is_a_stratified_partition():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 6000))
    train, validation = (split_rows(labels, split, 1 / 12, seed=3) for split in ("train", "validation"))
    assert np.bincount(labels[validation]).tolist() == [500] * 10
    assert np.array_equal(np.sort(np.concatenate([train, validation])), np.arange(60000))
    assert np.array_equal(validation, split_rows(labels, "validation", 1 / 12, seed=3))
    assert not np.array_equal(validation, split_rows(labels, "validation", 1 / 12, seed=4))
    assert np.array_equal(split_rows(labels, "test", 1 / 12, seed=3), np.arange(60000))
    with pytest.raises(InputError, match="validation split"):
        split_rows(np.array([0, 1]), "validation", 0.1, seed=0)


def saved(folder: Path, image: Image.Image, suffix: str = ".png", **options) -> Path:
    path = folder / f"image{suffix}"
    image.save(path, **options)
    return path


def flat(mode: str, colour) -> Image.Image:
    return Image.new(mode, (6, 6), colour)


def paletted(alpha: bool) -> Image.Image:
    image = Image.new("P", (6, 6), 1)
    image.putpalette([1, 2, 3, 200, 100, 50])
    if alpha:
        image.info["transparency"] = bytes([255, 51])
    return image


LUMA, FAINT_LUMA = (round(0.299 * r + 0.587 * g + 0.114 * b) for r, g, b in ((200, 100, 50), (40, 20, 10)))


@pytest.mark.parametrize(
    ("image", "suffix", "rgb", "grey"),
    [
        (flat("1", 1), ".png", (255,) * 3, 255),
        (flat("L", 77), ".png", (77,) * 3, 77),
        (flat("LA", (200, 51)), ".png", (40,) * 3, 40),
        (flat("RGB", (200, 100, 50)), ".png", (200, 100, 50), LUMA),
        (flat("RGBA", (200, 100, 50, 51)), ".png", (40, 20, 10), FAINT_LUMA),
        (flat("RGBA", (200, 100, 50, 0)), ".png", (0, 0, 0), 0),
        (paletted(alpha=False), ".png", (200, 100, 50), LUMA),
        (paletted(alpha=True), ".png", (40, 20, 10), FAINT_LUMA),
        (flat("CMYK", (55, 155, 205, 0)), ".tiff", (200, 100, 50), LUMA),
        (flat("I;16", 257 * 77), ".png", (77,) * 3, 77),
        (flat("I;16", 257 * 77 + 129), ".tiff", (78,) * 3, 78),
        (flat("I;16", 257 * 77 + 128), ".tiff", (77,) * 3, 77),
        (flat("I", 65535), ".tiff", (255,) * 3, 255),
        (flat("I", 257 * 77), ".tiff", (77,) * 3, 77),
        (flat("F", 0.2), ".tiff", (51,) * 3, 51),
    ],
)
def test_every_mode(tmp_path, image, suffix, rgb, grey):
    path = saved(tmp_path, image, suffix)
    with Image.open(path) as stored:
        assert stored.mode == image.mode
    for channels, wanted in ((3, rgb), (1, (grey,))):
        pixels = read_image(path, 6, channels)
        assert pixels.dtype == torch.uint8
        assert pixels.shape == (channels, 6, 6)
        assert torch.equal(pixels, torch.tensor(wanted, dtype=torch.uint8)[:, None, None].expand(channels, 6, 6))


@pytest.mark.parametrize("mode", ["YCbCr", "HSV"])
def test_other_colour_spaces(mode):
    image = flat("RGB", (200, 100, 50))
    assert np.abs(to_pixels(image.convert(mode), 3)[0, 0].astype(int) - [200, 100, 50]).max() <= 3


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def test_sixteen_bit_colour_keeps_its_high_byte(tmp_path):
    row = b"\0" + struct.pack(">3H", 0xC8FF, 0x6400, 0x3280) * 2
    header = struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0)
    body = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(row * 2)) + png_chunk(b"IEND", b"")
    (tmp_path / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    assert read_image(tmp_path / "deep.png", 2, 3)[:, 0, 0].tolist() == [0xC8, 0x64, 0x32]


def test_invert_keeps_what_is_transparent_black(tmp_path):
    assert read_image(saved(tmp_path, flat("L", 55)), 4, 1, invert=True).unique().tolist() == [200]
    assert read_image(saved(tmp_path, flat("I;16", 257 * 55)), 4, 1, invert=True).unique().tolist() == [200]
    ink = Image.new("RGBA", (4, 4), (255, 255, 255, 0))
    ink.paste((0, 0, 0, 255), (0, 0, 2, 4))
    assert read_image(saved(tmp_path, ink), 4, 1, invert=True)[0, 0].tolist() == [255, 255, 0, 0]
    deep = Image.fromarray(np.tile(np.array([0, 65535], dtype=np.uint16), (2, 1)))
    path = saved(tmp_path, deep, transparency=65535)
    assert read_image(path, 2, 1)[0, 0].tolist() == [0, 0]
    assert read_image(path, 2, 1, invert=True)[0, 0].tolist() == [255, 0]


def test_crop_is_centred(tmp_path):
    square = np.arange(1, 10, dtype=np.uint8).reshape(3, 3)
    wide = np.pad(square, ((0, 0), (2, 2)), constant_values=99)
    tall = np.pad(square, ((1, 2), (0, 0)), constant_values=99)
    for pixels in (wide, tall):
        assert np.array_equal(read_image(saved(tmp_path, Image.fromarray(pixels)), 3, 1)[0].numpy(), square)


@pytest.mark.parametrize(
    ("orientation", "wanted"),
    [(1, [[1, 2], [3, 4]]), (2, [[2, 1], [4, 3]]), (3, [[4, 3], [2, 1]]), (6, [[3, 1], [4, 2]]), (8, [[2, 4], [1, 3]])],
)
def test_exif_orientation(tmp_path, orientation, wanted):
    image = Image.fromarray(np.array([[1, 2], [3, 4]], dtype=np.uint8))
    exif = image.getexif()
    exif[0x0112] = orientation
    assert read_image(saved(tmp_path, image, exif=exif), 2, 1)[0].tolist() == wanted


def test_reducing_averages_and_enlarging_interpolates(tmp_path):
    checks = Image.fromarray((np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8))
    assert read_image(saved(tmp_path, checks), 8, 1).float().sub(127.5).abs().max() <= 4
    ramp = Image.fromarray(np.tile(np.arange(0, 160, 20, dtype=np.uint8), (8, 1)))
    row = read_image(saved(tmp_path, ramp), 16, 1)[0, 8].int()
    assert bool((row.diff()[2:-2] > 0).all())


def test_first_frame_of_an_animation(tmp_path):
    frames = [flat("L", 10), flat("L", 200)]
    path = saved(tmp_path, frames[0], ".gif", save_all=True, append_images=frames[1:])
    assert read_image(path, 4, 1).unique().tolist() == [10]


def test_unreadable_files_are_named(tmp_path):
    text = tmp_path / "text.png"
    text.write_text("not an image")
    empty = tmp_path / "empty.png"
    empty.touch()
    cut = tmp_path / "cut.png"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    cut.write_bytes(saved(tmp_path, Image.fromarray(noise)).read_bytes()[:2000])
    cut_jpeg = tmp_path / "cut.jpg"
    cut_jpeg.write_bytes(saved(tmp_path, Image.fromarray(noise), ".jpg").read_bytes()[:1500])
    for path in (tmp_path / "none.png", tmp_path, text, empty, cut, cut_jpeg):
        with pytest.raises(InputError) as caught:
            read_image(path, 8, 1)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "image", [flat("I", 65536), flat("I", -1), flat("F", 1.5), flat("F", -0.1), flat("F", float("nan"))]
)
def test_values_beyond_the_depth_are_refused(tmp_path, image):
    path = saved(tmp_path, image, ".tiff")
    with pytest.raises(InputError, match="values in 0") as caught:
        read_image(path, 4, 1)
    assert str(path) in str(caught.value)


def test_read_image_refuses_sizes_and_channels(tmp_path):
    path = saved(tmp_path, flat("L", 1))
    for size, channels in ((0, 1), (8, 2), (8, 4)):
        with pytest.raises(InputError, match="size" if size == 0 else "channels"):
            read_image(path, size, channels)


def test_decode_images_names_the_bad_one():
    pictures = [flat("L", 10), flat("RGBA", (20, 30, 40, 255))]
    decoded = decode_images(2, lambda i: pictures[i].copy(), str, 6, 3)
    assert decoded[:, :, 5, 5].tolist() == [[10, 10, 10], [20, 30, 40]]
    with pytest.raises(InputError, match=r"image 1=\(5, 6\): expected 6x6"):
        decode_images(2, lambda i: Image.new("L", (6 - i, 6)), str, 6, 3)

    def absent(i: int) -> Image.Image:
        raise FileNotFoundError("no such file")

    with pytest.raises(InputError, match=r"image='0': .*no such file"):
        decode_images(2, absent, str, 6, 3)
