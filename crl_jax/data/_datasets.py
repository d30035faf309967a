"""The datasets that :func:`crl_jax.data.load` downloads: an entry here is all that one needs."""

from dataclasses import dataclass

from ._readers import Format


@dataclass(frozen=True)
class Dataset:
    """A zip archive on the net, and the one file of interactions in it.

    Attributes:
      url: Where the archive is.
      sha256: The checksum of the archive, in hexadecimal.
      size: The size of the archive in bytes.
      member: The name of the file inside.
      member_size: The unpacked size of the file in bytes.
      format: How the file is read, one of the formats of :func:`crl_jax.data.read`.
      home: The page with its description and licence.
    """

    url: str
    sha256: str
    size: int
    member: str
    member_size: int
    format: Format
    home: str


_GROUPLENS = "https://files.grouplens.org/datasets/movielens"
_HOME = "https://grouplens.org/datasets/movielens"

# Add to it, here or from outside: ``data.DATASETS["mine:2024"] = data.Dataset(...)``.
# The releases of MovieLens are frozen. Sizes and checksums are those that TensorFlow Datasets pins
# in url_checksums/movielens.txt.
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
