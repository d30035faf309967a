"""Texts of users in a terminal: paths, ids and messages are printed as they are."""

import pytest

from experiments import _screen as screen


@pytest.mark.parametrize(
    "text",
    [
        r"a\[/b]", r"a\[b]", "\\", r"x\\[red]y", "[/]", "[link=x]", "[1]", r"C:\[dir]\x",
        "user:x:7", ":smile:", "root:x:0:0",
    ],
)  # fmt: skip
def test_markup_and_emoji_codes_in_a_text_are_printed(text, capsys):
    screen.output().print(screen.plain(text), highlight=False)
    assert capsys.readouterr().out == text + "\n"
