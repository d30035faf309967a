"""Runtime type checker of the tests: beartype, configured to accept an int as a float."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
