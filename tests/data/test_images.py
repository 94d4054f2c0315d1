"""Decoding, cropping and resizing of images."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from big_retrieval.data.images import decoding, transforms
from big_retrieval.errors import Damaged
from tests.data.files import encoded


def picture(rows, columns, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, columns, 3), np.uint8)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("RGB", "PNG"),
        ("L", "PNG"),
        ("P", "PNG"),
        ("LA", "PNG"),
        ("1", "PNG"),
        ("CMYK", "JPEG"),
        ("I", "TIFF"),
    ],
)
def test_decode_converts_any_mode_to_rgb(mode, kind):
    grey = np.full((16, 16, 3), 255, np.uint8)
    grey[:, 8:] = 0
    found = decoding.decode(
        encoded(Image.fromarray(grey).convert("L").convert("RGB").convert(mode), kind)
    )
    assert found.shape == (16, 16, 3)
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - grey).max() < 8


RAMP = np.linspace(0, 1, 9, dtype=np.float32)[None].repeat(2, 0)
EIGHTHS = [0, 32, 64, 96, 128, 159, 191, 223, 255]
DEEP = np.array([[0, 257 * 3, 257 * 100, 65535]], np.uint16)


@pytest.mark.parametrize(
    ("values", "kind", "keys", "grey"),
    [
        (DEEP, "PNG", {}, [0, 3, 100, 255]),
        (DEEP // 300, "PNG", {}, [0, 0, 0, 1]),
        (np.array([[13107, 40000]], np.uint16), "PNG", {"transparency": 13107}, [255, 156]),
        *((RAMP * largest, "TIFF", {}, EIGHTHS) for largest in (1, 255, 65535)),
    ],
)
def test_decode_scales_deep_grey_values(values, kind, keys, grey):
    pixels = decoding.decode(encoded(Image.fromarray(values), kind, **keys))
    assert pixels[0, :, 0].tolist() == grey


def test_decode_lays_transparency_over_white():
    rgba = np.zeros((1, 3, 4), np.uint8)
    rgba[0, 1] = (200, 0, 0, 255)
    rgba[0, 2] = (0, 0, 0, 128)
    pixels = decoding.decode(encoded(Image.fromarray(rgba)))[0].tolist()
    assert pixels == [[255, 255, 255], [200, 0, 0], [127, 127, 127]]
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    pixels = decoding.decode(encoded(palette, transparency=0))[0].tolist()
    assert pixels == [[255, 255, 255], [40, 50, 60]]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 60),
    columns=st.integers(1, 60),
    size=st.integers(1, 40),
    scale=st.tuples(st.floats(0.05, 1), st.floats(0.05, 1)).map(sorted).map(tuple),
    ratio=st.tuples(st.floats(0.3, 3), st.floats(0.3, 3)).map(sorted).map(tuple),
    seed=st.integers(0, 99),
)
def test_crops_are_square_deterministic_and_inside(rows, columns, size, scale, ratio, seed):
    image = picture(rows, columns)
    a, b = (
        transforms.training_view(
            image, size, scale=scale, ratio=ratio, rng=np.random.default_rng(seed)
        )
        for _ in range(2)
    )
    np.testing.assert_array_equal(a, b)
    assert a.shape == (size, size, 3)
    assert a.dtype == np.uint8
    box = transforms.crop_box(rows, columns, scale, ratio, np.random.default_rng(seed))
    top, left, height, width = box
    assert 0 <= top < top + height <= rows
    assert 0 <= left < left + width <= columns


def test_crop_box_keeps_share_and_ratio():
    rng = np.random.default_rng(0)
    boxes = [transforms.crop_box(400, 500, (0.2, 0.6), (0.75, 4 / 3), rng) for _ in range(300)]
    shares = np.array([height * width / 200_000 for _, _, height, width in boxes])
    ratios = np.array([width / height for _, _, height, width in boxes])
    assert 0.199 < shares.min() < 0.22
    assert 0.58 < shares.max() < 0.601
    assert 0.74 < ratios.min() < 0.80
    assert 1.27 < ratios.max() < 1.34
    assert np.std([top for top, *_ in boxes]) > 30


def test_training_view_of_full_scale_crops_and_draws_nothing():
    image = picture(20, 30)
    rng = np.random.default_rng(0)
    view = transforms.training_view(image, 8, scale=(1, 1), ratio=(0.75, 1.33), rng=rng)
    np.testing.assert_array_equal(view, transforms.resize(image, 8, 8))
    assert rng.random() == np.random.default_rng(0).random()
    image = picture(8, 8)
    same = transforms.training_view(image, 8, scale=(1, 1), ratio=(1, 1), rng=rng)
    for view in (transforms.resize(image, 8, 8), transforms.evaluation_view(image, 8), same):
        assert np.shares_memory(view, image)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_evaluation_view_squashes_both_sides(interpolation):
    image = picture(21, 64)
    found = transforms.evaluation_view(
        image, 10, 13, squash=True, interpolation=interpolation, margin="down"
    )
    method = Image.Resampling[interpolation.upper()]
    whole = np.asarray(Image.fromarray(image).resize((13, 13), method))
    np.testing.assert_array_equal(found, whole[1:11, 1:11])
    even = transforms.evaluation_view(image, 10, 13, squash=True, interpolation=interpolation)
    np.testing.assert_array_equal(even, whole[2:12, 2:12])


@pytest.mark.parametrize("short", [0, 13])
@pytest.mark.parametrize(("rows", "columns"), [(30, 20), (20, 30), (20, 20), (21, 64), (5, 4)])
def test_evaluation_view_crops_the_center(rows, columns, short):
    image = picture(rows, columns)
    found = transforms.evaluation_view(image, 10, short)
    assert found.shape == (10, 10, 3)
    scale = (short or 10) / min(rows, columns)
    whole = np.asarray(
        Image.fromarray(image).resize(
            (int(columns * scale), int(rows * scale)), Image.Resampling.BICUBIC
        )
    )
    top, left = round((whole.shape[0] - 10) / 2), round((whole.shape[1] - 10) / 2)
    np.testing.assert_array_equal(found, whole[top : top + 10, left : left + 10])


def jpeg(rows: int, columns: int, **keys) -> bytes:
    """Returns a smooth picture as a JPEG file."""
    coarse = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((columns, rows), Image.Resampling.BICUBIC)
    return encoded(image, "JPEG", quality=95, **keys)


def view(data: bytes, **keys) -> np.ndarray:
    rng = np.random.default_rng(3)
    keys = {"scale": (0.6, 1.0), "ratio": (0.8, 1.25), "rng": rng, **keys}
    return transforms.training_view(decoding.Encoded(data), 64, **keys).astype(float)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("kind", ["reduced", "opencv", "opencv, not reduced"])
def test_reduced_and_opencv_views_show_the_same_part(kind, rotated):
    if "opencv" in kind:
        pytest.importorskip("cv2")
    exif = Image.Exif()
    exif[0x0112] = 6
    data = jpeg(900, 700, **({"exif": exif} if rotated else {}))
    exact = view(data, reduced=False)
    decoder = "opencv" if "opencv" in kind else "pillow"
    found = view(data, reduced="not" not in kind, decoder=decoder)
    assert found.shape == exact.shape == (64, 64, 3)
    assert np.abs(found - exact).mean() < 2
    assert np.abs(found - exact[:, ::-1]).mean() > 10


def test_encoded_and_decoded_images_give_the_same_view():
    data = jpeg(90, 70)
    rng = np.random.default_rng(3)
    keys = {"scale": (0.6, 1.0), "ratio": (0.8, 1.25), "rng": rng}
    np.testing.assert_array_equal(
        view(data), transforms.training_view(decoding.decode(data), 64, **keys)
    )
    np.testing.assert_array_equal(
        transforms.evaluation_view(decoding.Encoded(data), 32),
        transforms.evaluation_view(decoding.decode(data), 32),
    )


@pytest.mark.parametrize(("side", "scale"), [(127, 1), (128, 2), (255, 2), (256, 4), (2000, 8)])
def test_reduced_decoding_keeps_enough_pixels(side, scale):
    part = np.asarray(decoding.decode_part(jpeg(side, side), lambda h, w: (0, 0, h, w), 64))
    assert part.shape[0] == -(-side // scale)


def test_opencv_rejects_a_truncated_jpeg():
    pytest.importorskip("cv2")
    data = jpeg(300, 300)
    with pytest.raises(Damaged, match="truncated"):
        view(data[: len(data) // 2], decoder="opencv")


def test_decode_rejects_grey_of_more_than_16_bits() -> None:
    with pytest.raises(ValueError, match="grey values go to 1e"):
        decoding.decode(encoded(Image.fromarray(np.array([[0, 10**6]], np.int32)), "TIFF"))
