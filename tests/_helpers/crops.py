"""Reference crops: Pillow, and the published rule for random boxes."""

import numpy as np
from PIL import Image


def pillow(x, box, size):
    """Crops, then resizes each channel in float32."""
    top, left, height, width = (int(n) for n in box)
    part = x[top : top + height, left : left + width]
    channels = [
        np.asarray(Image.fromarray(c).resize(size[::-1], Image.Resampling.BILINEAR))
        for c in np.moveaxis(part, -1, 0)
    ]
    return np.stack(channels, axis=-1)


def simulated_box(rng, height, width, scale, ratio):
    """Draws a box by the published rule, one attempt after another."""
    for _ in range(10):
        area = height * width * rng.uniform(*scale)
        shape = np.exp(rng.uniform(*np.log(ratio)))
        w, h = round(np.sqrt(area * shape)), round(np.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return rng.integers(height - h + 1), rng.integers(width - w + 1), h, w
    w, h = width, height
    if width / height < min(ratio):
        h = round(width / min(ratio))
    elif width / height > max(ratio):
        w = round(height * max(ratio))
    return (height - h) // 2, (width - w) // 2, h, w
