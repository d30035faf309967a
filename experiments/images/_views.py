"""Image augmentation, configured by the flags and the training images."""

from dataclasses import fields, replace

import numpy as np

from crl_jax import augment, data

from .._program import flag
from ._config import ViewOptions


def resolve_views(options: ViewOptions, images: np.ndarray | data.DiskArray) -> ViewOptions:
    """Returns the flags with unset values filled in, as a function of the uint8 images."""
    side, *_, n_channels = images.shape[1:]
    grey = n_channels == 1
    pixels = images[:: max(1, len(images) // 2000)]
    # Exact, and without a copy of the pixels in a wider type.
    counts = [np.bincount(pixels[..., i].ravel(), minlength=256) for i in range(n_channels)]
    values = np.arange(256) / 255
    mean = np.array([np.average(values, weights=n) for n in counts])
    variance = np.array([np.average((values - m) ** 2, weights=n) for m, n in zip(mean, counts)])
    defaults = ViewOptions(
        view_size=side,
        eval_size=options.view_size or side,
        crop=0.5 if grey else 0.08,
        flip=0.0 if grey else 0.5,
        jitter=0.5,
        jitter_p=0.8,
        grey_p=0.2,
        blur_p=0.0 if side < 16 else 0.5,
        mean=tuple(mean.round(4).tolist()),
        std=tuple(np.sqrt(variance).round(4).clip(1e-3).tolist()),
    )
    unset_defaults = {
        name: value for name, value in vars(defaults).items() if getattr(options, name) is None
    }
    return replace(options, **unset_defaults)


def make_views(options: ViewOptions) -> augment.ImageAugmentation:
    """Returns the augmentation for the flags returned by :func:`resolve_views`."""
    strength = options.jitter
    assert strength is not None
    assert options.view_size is not None
    return augment.ImageAugmentation(
        size=options.view_size,
        plain_size=options.eval_size,
        scale=(options.crop, 1.0),
        flip_rate=options.flip,
        jitter=(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength),
        jitter_rate=options.jitter_p,
        grey_rate=options.grey_p,
        blur_rate=options.blur_p,
        rotation=(-options.rotation, options.rotation),
        rotation_rate=options.rotation_p or None,
        noise_std=(0.0, options.noise),
        noise_rate=options.noise_p or None,
        cutout_size=options.cutout,
        cutout_rate=options.cutout_p or None,
        mean=options.mean,
        std=options.std,
    )


def describe_views(options: ViewOptions) -> str:
    """Formats the resolved flags as on the command line."""
    values = ((field.name, getattr(options, field.name)) for field in fields(options))
    formatted = (
        f"{flag(name)} {' '.join(f'{number:g}' for number in np.atleast_1d(value))}"
        for name, value in values
    )
    return f"views: {' '.join(formatted)}"
