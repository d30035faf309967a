"""What tests of the command line share."""

SHORT = ["--epochs", "3", "--batch-size", "256", "--dim", "8"]
QUICK = [*SHORT, "--lr", "0.01"]


def one_line(printed: str) -> str:
    """What was printed, without the line breaks that the width of the terminal brings."""
    return " ".join(printed.split())
