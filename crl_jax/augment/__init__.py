"""Augmentations of images and graphs for contrastive learning, as pure functions of a key.

An image is ``[..., height, width, channels]``, floats in [0, 1] or uint8.
:class:`ImageAugmentation` draws a whole view:

>>> import jax, jax.numpy as jnp
>>> from crl_jax import augment
>>> views = augment.ImageAugmentation.cifar10()
>>> images = jnp.zeros((4, 32, 32, 3), jnp.uint8)
>>> keys = jax.random.split(jax.random.key(0), 4)
>>> jax.jit(jax.vmap(views))(keys, images).shape
(4, 32, 32, 3)

Its steps can be used separately: with given parameters, such as :func:`adjust_hue`, or with random
ones, such as :func:`color_jitter`. All parameters may be traced.

:class:`GraphAugmentation` applies one of several random augmentations to graphs.
"""

from ._blur import gaussian_blur as gaussian_blur
from ._blur import random_blur as random_blur
from ._color import adjust_brightness as adjust_brightness
from ._color import adjust_contrast as adjust_contrast
from ._color import adjust_hue as adjust_hue
from ._color import adjust_saturation as adjust_saturation
from ._color import color_jitter as color_jitter
from ._color import random_grayscale as random_grayscale
from ._color import to_grayscale as to_grayscale
from ._crop import crop_resize as crop_resize
from ._crop import flip as flip
from ._crop import random_crop_box as random_crop_box
from ._crop import random_flip as random_flip
from ._cutout import cutout as cutout
from ._cutout import random_cutout as random_cutout
from ._graphs import GraphAugmentation as GraphAugmentation
from ._graphs import GraphKind as GraphKind
from ._graphs import drop_nodes as drop_nodes
from ._graphs import mask_attributes as mask_attributes
from ._graphs import perturb_edges as perturb_edges
from ._graphs import subgraph as subgraph
from ._image_augmentation import ImageAugmentation as ImageAugmentation
from ._noise import gaussian_noise as gaussian_noise
from ._noise import random_noise as random_noise
from ._rotation import random_rotation as random_rotation
from ._rotation import rotate as rotate
