"""Texts of users in a terminal: paths, ids and messages are printed as they are."""

import io
import sys

import pytest

from experiments import _screen as screen
from experiments.recommend import main

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


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


def test_encodings_without_some_characters_spell_them_out(tmp_path, monkeypatch):
    """A training, its help and an error, none of which may end because of its output."""
    encoding, out, err = "cp1252", io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding=encoding))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding=encoding))
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert main(["--epochs", "1", "--dim", "4", "--out", str(tmp_path / "run")]) == 0
    assert main(["--data", "τ…語", "--out", str(tmp_path / "no")]) == 2
    sys.stdout.flush()
    sys.stderr.flush()
    said = out.getvalue().decode(encoding)
    assert ">= " in said
    assert "tau+" in said
    assert "results in" in said
    assert "tau…?" in err.getvalue().decode(encoding)
