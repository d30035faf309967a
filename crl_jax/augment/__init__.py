"""Augmentations of images and graphs for contrastive learning, as pure functions of a key.

An image is ``[..., height, width, channels]``: floats in [0, 1], or uint8, which become such
floats. :class:`ImageAugmentation` puts a whole view together:

>>> import jax, jax.numpy as jnp
>>> from crl_jax import augment
>>> views = augment.ImageAugmentation.cifar10()
>>> images = jnp.zeros((4, 32, 32, 3), jnp.uint8)
>>> keys = jax.random.split(jax.random.key(0), 4)
>>> jax.vmap(views)(keys, images).shape
(4, 32, 32, 3)

Its parts are functions of their own. Some take the numbers that say what to do, such as
:func:`adjust_hue`; some take a key and draw these numbers, such as :func:`color_jitter`. All
numbers may be traced: another value compiles nothing anew.

Graphs that are samples are changed by :class:`GraphAugmentation`, in one of several ways by chance.
"""

from ._blur import gaussian_blur as gaussian_blur
from ._blur import random_blur as random_blur
from ._color import adjust_brightness as adjust_brightness
from ._color import adjust_contrast as adjust_contrast
from ._color import adjust_hue as adjust_hue
from ._color import adjust_saturation as adjust_saturation
from ._color import to_grayscale as to_grayscale
from ._crop import crop_resize as crop_resize
from ._crop import flip as flip
from ._crop import random_crop_box as random_crop_box
from ._crop import random_flip as random_flip
from ._graph_augmentation import GraphAugmentation as GraphAugmentation
from ._graph_augmentation import GraphKind as GraphKind
from ._graph_augmentation import drop_nodes as drop_nodes
from ._graph_augmentation import mask_attributes as mask_attributes
from ._graph_augmentation import perturb_edges as perturb_edges
from ._graph_augmentation import subgraph as subgraph
from ._image_augmentation import ImageAugmentation as ImageAugmentation
from ._jitter import color_jitter as color_jitter
from ._jitter import random_grayscale as random_grayscale
