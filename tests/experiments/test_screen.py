"""User-supplied text in a terminal: paths, ids and messages are printed verbatim."""

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
def test_markup_and_emoji_codes_are_printed_verbatim(text, capsys):
    screen.output().print(screen.plain(text), highlight=False)
    assert capsys.readouterr().out == text + "\n"


def test_unencodable_characters_are_replaced(tmp_path, monkeypatch):
    """Help, a training and an error message must not fail because of the encoding."""
    encoding, out, err = "cp1252", io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding=encoding))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding=encoding))
    with pytest.raises(SystemExit) as exit_info:
        main(["--help"])
    assert exit_info.value.code == 0
    assert main(["--epochs", "1", "--dim", "4", "--out", str(tmp_path / "run")]) == 0
    assert main(["--data", "τ…語", "--out", str(tmp_path / "no")]) == 2
    sys.stdout.flush()
    sys.stderr.flush()
    printed = out.getvalue().decode(encoding)
    assert ">= " in printed
    assert "tau+" in printed
    assert "results in" in printed
    assert "tau…?" in err.getvalue().decode(encoding)
