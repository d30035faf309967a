"""Registries of downloadable datasets: one entry per dataset, with a pinned checksum."""

from dataclasses import dataclass

from ._readers import Format


@dataclass(frozen=True)
class Dataset:
    """A downloadable zip archive with a file of interactions.

    Attributes:
      url: URL of the archive.
      sha256: Checksum of the archive, in hexadecimal.
      size: Size of the archive in bytes.
      member: Path of the file within the archive.
      member_size: Size of the unpacked file in bytes.
      format: File format, one of those of :func:`crl_jax.data.read`.
      home: Page with the description and the licence.
    """

    url: str
    sha256: str
    size: int
    member: str
    member_size: int
    format: Format
    home: str


@dataclass(frozen=True)
class ImageSet:
    """A downloadable archive of images, read in the same way as a local one.

    Attributes:
      url: URL of the archive.
      sha256: Checksum, in hexadecimal.
      size: Size in bytes.
      home: Page with the description and the licence.
    """

    url: str
    sha256: str
    size: int
    home: str


_GROUPLENS = "https://files.grouplens.org/datasets/movielens"
_HOME = "https://grouplens.org/datasets/movielens"
_CIFAR = "https://www.cs.toronto.edu/~kriz"

# Users extend it: ``data.DATASETS["mine:2024"] = data.Dataset(...)``.
# MovieLens releases are frozen. Sizes and checksums agree with url_checksums/movielens.txt of
# TensorFlow Datasets.
DATASETS: dict[str, Dataset] = {
    "movielens:100k": Dataset(
        url=f"{_GROUPLENS}/ml-100k.zip",
        sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        size=4_924_029,
        member="ml-100k/u.data",
        member_size=1_979_173,
        format="u.data",
        home=_HOME,
    ),
    "movielens:1m": Dataset(
        url=f"{_GROUPLENS}/ml-1m.zip",
        sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        size=5_917_549,
        member="ml-1m/ratings.dat",
        member_size=24_594_131,
        format="ratings.dat",
        home=_HOME,
    ),
    "movielens:20m": Dataset(
        url=f"{_GROUPLENS}/ml-20m.zip",
        sha256="96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
        size=198_702_078,
        member="ml-20m/ratings.csv",
        member_size=533_444_411,
        format="csv",
        home=_HOME,
    ),
    "movielens:25m": Dataset(
        url=f"{_GROUPLENS}/ml-25m.zip",
        sha256="8b21cfb7eb1706b4ec0aac894368d90acf26ebdfb6aced3ebd4ad5bd1eb9c6aa",
        size=261_978_986,
        member="ml-25m/ratings.csv",
        member_size=678_260_987,
        format="csv",
        home=_HOME,
    ),
}
"""Datasets of interactions that :func:`load` downloads, by name.

An own entry, ``DATASETS["mine:2024"] = Dataset(...)``, makes a dataset available to :func:`load`.
"""

# Users extend it: ``data.IMAGE_SETS["mine"] = data.ImageSet(...)``.
# Sizes and checksums of CIFAR and STL-10 agree with TensorFlow Datasets 4.9.10
# (url_checksums/cifar10.txt, cifar100.txt and datasets/stl10/checksums.tsv), which does not have
# Tiny ImageNet. For that, seven independent public projects record this SHA-256, and several this
# size, together with the MD5 90528d7ca1a48142e341f4ef8d21d0de that most loaders pin.
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
"""Datasets of images that :func:`load_images` downloads, by name."""
