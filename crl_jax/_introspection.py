"""Hyper-parameters as signatures declare them, for command lines, files and documentation."""

import contextlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ._hyperparams import Range, get_choices, get_range, is_integer

_SYMBOLS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "lambda": "λ",
    "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "omega": "ω", "ge": "≥", "le": "≤",
    "in": "∈", "mid": "|", "propto": "∝", "infty": "∞", "mathcal": "", "hat": "", "sum": "Σ",
}  # fmt: skip


_REFERENCE = re.compile(r":(?:func|class|meth):`~?([\w.]+)`")


class Hyperparam(NamedTuple):
    """Declaration of a hyper-parameter.

    Attributes:
      default: Default value; ``inspect.Parameter.empty`` if it is required.
      kind: ``int``, ``float`` or ``str``.
      range: Interval of its values, or None.
      choices: Its values, if these are strings.
      help: First sentence of its entry in the docstring, as plain text.
    """

    default: Any
    kind: type
    range: Range | None
    choices: tuple[str, ...]
    help: str


def hyperparams(source: Callable[..., Any]) -> dict[str, Hyperparam]:
    """Returns the hyper-parameters that a function or a dataclass declares.

    These are the arguments whose annotation has a :class:`Range` or is a ``Literal`` of strings.
    Docstrings may refer to others: ``As in :func:`bpr`.`` for an entry, or a paragraph
    ``Other arguments are those of :func:`bpr`.``

    Args:
      source: Loss or weight function, or the class of a sampler, model or optimizer.

    Returns:
      The declarations by name, in the order of the signature.

    >>> from crl_jax import losses
    >>> floor = hyperparams(losses.debiased_pairwise)["floor"]
    >>> print(floor.default, floor.range, floor.help)
    0.01 [0.0, 1.0] Lower bound of the estimated probability, in [0, 1]
    """
    docs: dict[str, str] = {}
    for owner in reversed(source.__mro__) if isinstance(source, type) else (source,):
        docs |= _argument_docs(owner)
    declarations = {}
    for name, parameter in inspect.signature(source).parameters.items():
        annotation = parameter.annotation
        allowed, choices = get_range(annotation), get_choices(annotation)
        if allowed is not None or choices:
            kind = str if choices else int if is_integer(annotation) else float
            text = docs.get(name, "")
            declarations[name] = Hyperparam(parameter.default, kind, allowed, choices, text)
    return declarations


def summary(source: Callable[..., Any]) -> str:
    """Returns the first line of a docstring as plain text, without the period."""
    return _plain((inspect.getdoc(source) or "").partition("\n")[0]).rstrip(".")


def _argument_docs(source: Callable[..., Any]) -> dict[str, str]:
    """First sentences of the entries of ``Args`` and ``Attributes``, by argument."""
    doc = inspect.getdoc(source) or ""
    sections = re.findall(r"^(?:Args|Attributes):\n(.*?)(?=^\S|\Z)", doc, re.M | re.S)
    docs: dict[str, str] = {}
    for sentence in re.findall(r"^(?:Other a|A)rguments.*?\.$", doc, re.M | re.S):
        for reference in _REFERENCE.findall(sentence):
            docs |= _sibling_docs(source, reference)
    for entry in re.split(r"^  (?=[\w*])", "".join(sections), flags=re.M):
        names, _, text = " ".join(entry.split()).partition(": ")
        other = _REFERENCE.search(text) if text.startswith(("As in", "As for")) else None
        siblings = _sibling_docs(source, other[1]) if other else {}
        for name in names.split(", "):
            docs[name] = siblings.get(name, "") if other else _first_sentence(text)
    return docs


def _sibling_docs(source: Callable[..., Any], reference: str) -> dict[str, str]:
    """Entries of the docstring that a docstring refers to; empty if there is none of that name.

    Names are looked up as Sphinx does: in the module, in its package, and as absolute names.
    """
    module = inspect.unwrap(source).__module__
    for scope in (module, module.rpartition(".")[0], ""):
        with contextlib.suppress(AttributeError, ImportError, ValueError):
            return _argument_docs(pkgutil.resolve_name(f"{scope}.{reference}".lstrip(".")))
    return {}


def _first_sentence(text: str) -> str:
    return re.split(r"[.;](?= |$)", _plain(text), maxsplit=1)[0]


def _plain(text: str) -> str:
    """Replaces reStructuredText roles and the TeX of symbols by plain text."""
    text = re.sub(r":math:`(.*?)`", lambda match: _unicode(match[1]), text)
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")


def _unicode(tex: str) -> str:
    tex = re.sub(r"\\([a-z]+)", lambda match: _SYMBOLS.get(match[1], match[1]), tex)
    tex = re.sub(r"\\\W", "", tex)
    return tex.replace("^+", "⁺").replace("^-", "⁻").translate({ord("{"): None, ord("}"): None})
