"""A folder of images: one folder per class, optionally below `train` and `test`."""

from pathlib import Path

import numpy as np

from hansa.common.data.dataset import DataSet
from hansa.common.data.examples import Examples
from hansa.common.data.readers.files import damaged
from hansa.common.values.errors import InvalidData, InvalidInput

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}


def read_folder(folder: Path) -> DataSet:
    """Read images of one size as channels × height × width bytes; gray ones have one channel."""
    parts = [folder / "train", folder / "test"] if (folder / "train").is_dir() else [folder]
    parts = [part for part in parts if part.is_dir()]
    classes = sorted(
        {each.name for part in parts for each in part.iterdir() if each.is_dir() and _shown(each)}
    )
    if not classes:
        raise InvalidData(f"{folder}: it has no folders of images; it needs one folder per class")
    files = [
        [(path, number) for number, name in enumerate(classes) for path in _images(part / name)]
        for part in parts
    ]
    for number, name in enumerate(classes):
        if not any(label == number for part in files for _, label in part):
            raise InvalidData(f"{folder}: class {name!r} is empty: there is no image in its folder")
    images = [_read(path) for part in files for path, _ in part]
    channels = max(len(image) for image in images)
    for (path, _), image in zip([each for part in files for each in part], images, strict=True):
        if image.shape[1:] != images[0].shape[1:]:
            sizes = ["×".join(map(str, shape[:0:-1])) for shape in (image.shape, images[0].shape)]
            raise InvalidData(
                f"{path}: {sizes[0]} pixels, but others have {sizes[1]}; bring all images to one size"
            )
    x = np.stack([np.repeat(image, channels, axis=0) if len(image) < channels else image for image in images])
    y = np.array([label for part in files for _, label in part], np.int64)
    return DataSet(Examples(x, y), len(files[1]) if len(files) > 1 else 0, classes=tuple(classes))


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix.lower() in ENDINGS and _shown(path))


def _shown(path: Path) -> bool:
    """Whether a file is not hidden: notebooks and desktops leave names with a leading dot everywhere."""
    return not path.name.startswith(".")


def _read(path: Path) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError:
        raise InvalidInput(f"{path}: reading images needs Pillow: pip install 'hansa[data]'") from None
    with damaged(path, "a readable image"), Image.open(path) as image:
        if image.mode[0] in "IF":  # 16 bits and more: as bytes they would be almost white
            raise InvalidData(
                f"{path}: more than 8 bits for each pixel and colour; convert images to 8 bits first"
            )
        gray = image.mode in ("1", "L", "LA")
        pixels = np.asarray(image.convert("L" if gray else "RGB"), np.uint8)
    return pixels[None] if gray else np.moveaxis(pixels, -1, 0)
