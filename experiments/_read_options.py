"""Options of the readers of interactions, which commands share."""

from dataclasses import field, fields
from typing import Annotated, Any, Literal

from ._ranges import Range, option_group


@option_group
class ReadOptions:
    """Options of the file readers, by keyword."""

    min_rating: Annotated[float | None, Range()] = field(default=None, kw_only=True)
    """Minimum rating of an interaction to count as a positive."""
    user_col: str | None = field(default=None, kw_only=True)
    """Name of the user column, if it is not detected; its position from 0 in text without a
    header."""
    item_col: str | None = field(default=None, kw_only=True)
    """Name or position of the item column."""
    rating_col: str | None = field(default=None, kw_only=True)
    """Name or position of the rating column; empty to read no ratings."""
    time_col: str | None = field(default=None, kw_only=True)
    """Name or position of the timestamp column; empty to read no timestamps."""
    format: (
        Literal["u.data", "ratings.dat", "ydata", "csv", "parquet", "inter", "lightgcn", "jsonl"]
        | None
    ) = field(default=None, kw_only=True)
    """Format of the files, if it is not detected from their names and first lines."""
    delimiter: str | None = field(default=None, kw_only=True)
    """Field separator of csv text, if it is not detected from the first line."""
    header: bool | None = field(default=None, kw_only=True)
    """Whether the first line of text is a header; by default it is, unless a column is given by its
    position."""
    quote_char: str | None = field(default=None, kw_only=True)
    """Quote character of csv text, a double quote by default; empty to disable quoting."""
    encoding: str | None = field(default=None, kw_only=True)
    """Encoding of text, such as latin-1; UTF-8 by default."""

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of :func:`crl_jax.data.load` that the flags set."""
        names = (field.name for field in fields(ReadOptions))
        return {name: value for name in names if (value := getattr(self, name)) is not None}
