"""The checker of signatures that pytest is told of: beartype, to which an int is a float."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
