"""Occupations of MovieLens users, from the files distributed with the ratings."""

from pathlib import Path

import numpy as np

from crl_jax import data


def occupations(source: str | Path, interactions: data.Interactions) -> np.ndarray:
    """Returns the occupation of each user as an integer from 0, according to ``u.user``.

    User and item ids are those of ``u.data`` in the same folder, or numbered from 0 by first
    appearance there, as in published splits. The numbering is inferred from the interactions, all
    of which must be in ``u.data``.

    Args:
      source: The folder of ``u.user`` and ``u.data``, or a file in it.
      interactions: Interactions of these users.

    Returns:
      Integers ``[n_users]``.

    Raises:
      ValueError: If a file is missing or corrupt, or does not contain the interactions.
    """
    folder = Path(source).parent if Path(source).is_file() else Path(source)
    occupation_by_user = _read_users(folder / "u.user")
    log = _read_log(folder / "u.data")
    users, items = ([row[column] for row in log] for column in (0, 1))
    wanted = set(
        zip(
            interactions.user_ids[interactions.users].tolist(),
            interactions.item_ids[interactions.items].tolist(),
            strict=True,
        )
    )
    by_id = {user: user for user in users}, {item: item for item in items}
    by_appearance = tuple(
        {original: position for position, original in enumerate(dict.fromkeys(column))}
        for column in (users, items)
    )
    for user_numbers, item_numbers in (by_id, by_appearance):
        if wanted <= {(user_numbers[user], item_numbers[item]) for user, item in zip(users, items)}:
            original = {number: user for user, number in user_numbers.items()}
            break
    else:
        raise ValueError(f"{folder / 'u.data'} does not hold the interactions of this training.")
    names = [occupation_by_user[original[user]] for user in interactions.user_ids.tolist()]
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    return np.array([numbers[name] for name in names])


def _read_users(path: Path) -> dict[int, str]:
    """Reads the occupation by user id, from lines ``user|age|gender|occupation|zip``."""
    occupation_by_user: dict[int, str] = {}
    for number, line in enumerate(_lines(path), start=1):
        fields = line.split("|")
        if len(fields) != 5 or not fields[0].isdigit():
            raise ValueError(
                f"{path}:{number}: expected user|age|gender|occupation|zip, got {line!r}."
            )
        occupation_by_user[int(fields[0])] = fields[3]
    return occupation_by_user


def _read_log(path: Path) -> list[tuple[int, int]]:
    """Reads users and items from lines ``user<tab>item<tab>rating<tab>time``, in file order."""
    rows = []
    for number, line in enumerate(_lines(path), start=1):
        fields = line.split("\t")
        if len(fields) != 4 or not (fields[0].isdigit() and fields[1].isdigit()):
            raise ValueError(f"{path}:{number}: expected user, item, rating, time, got {line!r}.")
        rows.append((int(fields[0]), int(fields[1])))
    return rows


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise ValueError(f"occupations need {path.name}, and there is no {path}.")
    return path.read_text(encoding="latin-1").splitlines()
