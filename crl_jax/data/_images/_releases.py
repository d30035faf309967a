"""The image sets that :func:`crl_jax.data.load_images` downloads: an entry is all one needs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ImageSet:
    """An archive of images on the net, read as a path to it would be.

    Attributes:
      url: Where the archive is.
      sha256: Its checksum, in hexadecimal.
      size: Its size in bytes.
      home: The page with its description and licence.
    """

    url: str
    sha256: str
    size: int
    home: str


_CIFAR = "https://www.cs.toronto.edu/~kriz"

# Add to it, here or from outside: ``data.IMAGE_SETS["mine"] = data.ImageSet(...)``.
# CIFAR and STL-10: sizes and checksums are those that TensorFlow Datasets 4.9.10 pins, in
# url_checksums/cifar10.txt and cifar100.txt and in datasets/stl10/checksums.tsv. Of Tiny ImageNet
# it knows nothing: seven public projects that do not copy each other record this SHA-256, and
# several this size, beside the MD5 90528d7ca1a48142e341f4ef8d21d0de that most loaders pin.
IMAGE_SETS: dict[str, ImageSet] = {
    "cifar10": ImageSet(
        url=f"{_CIFAR}/cifar-10-binary.tar.gz",
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        size=170_052_171,
        home=f"{_CIFAR}/cifar.html",
    ),
    "cifar100": ImageSet(
        url=f"{_CIFAR}/cifar-100-binary.tar.gz",
        sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        size=168_513_733,
        home=f"{_CIFAR}/cifar.html",
    ),
    "stl10": ImageSet(
        url="http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        sha256="f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
        size=2_640_397_119,
        home="https://cs.stanford.edu/~acoates/stl10/",
    ),
    "tiny-imagenet": ImageSet(
        url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        sha256="6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
        size=248_100_043,
        home="http://cs231n.stanford.edu/",
    ),
}
