"""Sphinx extension: API pages generated from the names that each package exports.

A block ```` ```{api} crl_jax.losses ``` ```` on a page becomes the docstring of the package and,
below the headings of :data:`GROUPS`, the documentation of each exported name under its public path.
Signatures show annotations as written in the source: ``Float[Array, "*batch n_neg"]``.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.directives import ObjectDescription
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
ROOT = Path(__file__).parents[2]
SOURCE = "https://github.com/crl-jax/crl_jax/blob/main/"
BLOCK = re.compile(r"^```{api} ([\w.]+)\n```$", re.MULTILINE)
PACKAGES = (
    "crl_jax", "crl_jax.losses", "crl_jax.weights", "crl_jax.samplers", "crl_jax.augment",
    "crl_jax.kernels", "crl_jax.models", "crl_jax.baselines", "crl_jax.tasks", "crl_jax.train",
    "crl_jax.train.rows", "crl_jax.data", "crl_jax.metrics", "crl_jax.serving", "crl_jax.stats",
)  # fmt: skip

# Headings of the larger packages: the modules whose names they hold. A module of a package with
# headings must be listed, so that new names cannot be forgotten.
GROUPS: dict[str, dict[str, str]] = {
    "crl_jax.losses": {
        "Pairwise losses": "_pairwise _variational",
        "Contrastive losses": (
            "_contrastive _attention _corrected _global _surrogates _adversarial _top_k"
        ),
        "Losses with sigmoids": "_classification",
        "Several positives and labels": "_supervised",
        "Two modalities and prototypes": "_clip",
        "Noisy positives": "_denoising",
        "Distances": "_distances",
        "Estimators of the sum over negatives": "_estimators",
        "In-batch negatives and catalogues": "_batch_scores _tiled _fused",
        "Properties and reductions of losses": "_common _reduce",
    },
    "crl_jax.weights": {
        "Weights of negatives": "_negatives _adversarial",
        "Thresholds of false negatives": "_thresholds",
        "Weights of positives": "_positives _top_k",
        "Estimation of hyper-parameters": "_estimates",
        "Evaluation of weights": "_diagnostics",
        "Schedules": "_schedules",
    },
    "crl_jax.samplers": {
        "Interface": "_base",
        "Static samplers": "_static",
        "Shared negatives": "_shared",
        "Samplers that adapt to the scores": "_dynamic _srns _bayesian",
        "Composition": "_composite",
        "Priors of false negatives": "_priors",
        "Criteria": "_criteria",
        "Seen and unseen items": "_positives",
        "Permutations": "_permutation",
    },
    "crl_jax.augment": {
        "Images": "_image_augmentation",
        "Cropping, flipping and rotation": "_crop _rotation",
        "Colours": "_color",
        "Blurring, noise and cutout": "_blur _noise _cutout",
        "Graphs": "_graphs",
    },
    "crl_jax.models": {
        "Recommenders": (
            "_encoder _mf _lightgcn _feature_encoder _interaction_graph _propagation _blend"
        ),
        "Networks": "_network _projection _remat",
        "Images": "_resnet _convolution",
        "Sequences": "_sasrec",
        "Texts": "_bert _bert_load",
        "Graphs": "_gin _graph_batch",
    },
    "crl_jax.tasks": {
        "Recommendation": "_fit_ranking _tune _ranking _batch _debias",
        "Sequential recommendation": "_next_item",
        "Auxiliary losses": "_auxiliary _neighbor_contrast",
        "Noisy interactions": "_confidence",
        "Two views": "_views _simclr _multiview _global _momentum _pcl _kmeans _memory_bank",
        "Two modalities": "_clip",
        "Triplets and classification": "_triplets _classification",
        "Custom tasks on scores": "_score_task",
    },
    "crl_jax.train": {
        "Training": "_fit",
        "Tasks": "_task",
        "Batches": "_batches",
        "Optimizers and schedules": "_optimizers",
        "Hooks": "_hooks",
        "Many runs": "_sweep _halving",
        "Checkpoints": "_checkpoint _fingerprint",
        "Parts of the training loop": "_epoch _scan _jit _checks",
    },
    "crl_jax.data": {
        "Interactions": "_interactions _load _columns _from_arrays _readers",
        "Splits": "_splits",
        "Side features": "_features _feature_files",
        "Sequences": "_sequences",
        "Simulation": "_synthetic _shards",
        "Datasets and downloads": "_datasets _download",
        "Images": "_images",
        "Texts": "_texts",
        "Images with texts": "_captions",
        "Graphs": "_graphs",
        "Arrays on disk": "_rows",
        "Errors": "_errors",
    },
    "crl_jax.metrics": {
        "Evaluation of recommenders": "_evaluate _eval_layout",
        "Metrics of ranked lists": "_ranking _debiased_auc",
        "Top-k": "_top_k",
        "Sampled negatives": "_sampling",
        "Probes and neighbours": "_probe _neighbours _folds _uniformity",
        "Mutual information": "_information",
        "Two modalities": "_retrieval",
        "Classification": "_classes",
        "Calibration": "_calibration",
    },
    "crl_jax.stats": {
        "Ranks": "_ranks _columns",
        "Distributions": "_distributions _parametric",
        "Variance-gamma distribution": "_variance_gamma",
    },
}


@functools.cache
def parse(module: str) -> tuple[Path, ast.Module]:
    """Returns the file and the syntax tree of a module."""
    path = Path(inspect.getfile(importlib.import_module(module)))
    return path, ast.parse(path.read_text(encoding="utf-8"))


def definitions(module: str) -> dict[str, Any]:
    """Returns the names of a module: a node, or the path ``(module, name)`` of an import."""
    names: dict[str, Any] = {}
    path, tree = parse(module)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=source, names=found, level=level):
                parents = package.split(".")[: len(package.split(".")) - level + 1]
                start = ".".join([*parents, source] if source else parents) if level else source
                names |= {(x.asname or x.name): (start, x.name) for x in found}
            case ast.Import(names=found):
                names |= {(x.asname or x.name): (x.name, "") for x in found}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names[name] = node
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names[name] = node
    return names


definitions = functools.cache(definitions)


def resolve(module: str, name: str) -> tuple[str, str, ast.AST | None]:
    """Follows imports to the module that defines a name; its node is None outside the library."""
    while module.partition(".")[0] == "crl_jax":
        found = definitions(module).get(name)
        if not isinstance(found, tuple):
            return module, name, found
        module, name = found
        if inspect.ismodule(sys.modules.get(f"{module}.{name}")):
            return f"{module}.{name}", "", None
    return module, name, None


@functools.cache
def exports(package: str) -> dict[str, tuple[str, str, ast.AST | None]]:
    """Returns the public names of a package and where each is defined."""
    public = vars(importlib.import_module(package))
    names = [n for n in public if n[0] != "_" and not inspect.ismodule(public[n])]
    return {name: resolve(package, name) for name in names}


@functools.cache
def public_paths() -> dict[tuple[str, str], str]:
    """Returns the public path of each definition, by module and name."""
    paths: dict[tuple[str, str], str] = {}
    for package in PACKAGES:
        for name, (module, defined, _) in exports(package).items():
            paths.setdefault((module, defined), f"{package}.{name}")
    return paths


class _Annotation(ast.NodeTransformer):
    """Replaces names by references to public paths, and private aliases by their definitions."""

    def __init__(self, module: str, references: list[str]):
        self.module, self.references = module, references

    def _reference(self, path: str) -> ast.Name:
        self.references.append(path)
        return ast.Name(f"__reference_{len(self.references) - 1}__")

    def visit_Name(self, node: ast.Name) -> ast.expr:
        module, name, defined = resolve(self.module, node.id)
        if (module, name) in public_paths():
            return self._reference(f"~{public_paths()[module, name]}")
        if module.partition(".")[0] != "crl_jax":
            return self._reference(f"~{module}.{name}")
        if isinstance(defined, ast.Assign | ast.AnnAssign) and defined.value is not None:
            value = defined.value
            if isinstance(value, ast.Call):  # TypeVar("T", bound=...)
                value = next((k.value for k in value.keywords if k.arg == "bound"), None)
            if value is not None:
                return _Annotation(module, self.references).visit(_copy(value))
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name):
            module, name, _ = resolve(self.module, node.value.id)
            if module.partition(".")[0] == "crl_jax" and not name:
                return _Annotation(module, self.references).visit_Name(ast.Name(node.attr))
            if module != self.module:
                prefix = f"{module}.{name}".rstrip(".")
                return self._reference(f"~{prefix}.{node.attr}")
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        if name in ("Annotated", "ClassVar", "Final"):
            inner = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
            return self.visit(inner)
        literal = name == "Literal" or resolve(self.module, name)[0] == "jaxtyping"
        node.value = self.visit(node.value)
        if not literal:
            node.slice = self.visit(node.slice)
        elif isinstance(node.slice, ast.Tuple):
            items = node.slice.elts
            node.slice.elts = [x if isinstance(x, ast.Constant) else self.visit(x) for x in items]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, str):  # a forward reference
            return self.visit(ast.parse(node.value, mode="eval").body)
        return node


def _copy(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body


def annotation(node: ast.expr, module: str) -> str:
    """Returns an annotation as Sphinx shows it, with references to public paths."""
    references: list[str] = []
    text = ast.unparse(_Annotation(module, references).visit(_copy(node)))
    text = re.sub(r"__reference_(\d+)__", lambda m: references[int(m[1])], text)
    return text.replace(
        "int | ~jaxtyping.Float[~jaxtyping.ArrayLike", "~jaxtyping.Float[~jaxtyping.ArrayLike"
    )


def default(node: ast.expr, module: str) -> str:
    """Returns a default value as written, or the value of a private constant."""
    if isinstance(node, ast.Name) and node.id[0] == "_":
        where, _, found = resolve(module, node.id)
        if isinstance(found, ast.Assign | ast.AnnAssign) and found.value is not None:
            return default(found.value, where)
    return ast.unparse(node)


def definition(obj: Any) -> ast.AST | None:
    """Returns the node of a class, function or method of the library."""
    obj = inspect.unwrap(getattr(obj, "__func__", obj))
    module = getattr(obj, "__module__", None) or ""
    if module.partition(".")[0] != "crl_jax":
        return None
    node: ast.AST = parse(module)[1]
    for part in obj.__qualname__.split("."):
        found = [
            x for x in ast.iter_child_nodes(node)
            if isinstance(x, ast.FunctionDef | ast.ClassDef) and x.name == part
        ]  # fmt: skip
        if not found:
            return None
        node = found[-1]
    return node


Argument = tuple[ast.expr | None, ast.expr | None, str]
"""Annotation, default and module of an argument."""


def fields(cls: type) -> dict[str, Argument]:
    """Returns the fields of a dataclass or a named tuple."""
    found: dict[str, Argument] = {}
    for base in reversed(cls.__mro__):
        node = definition(base)
        for x in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name):
                value = x.value
                if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
                    given = {k.arg: k.value for k in value.keywords}
                    factory = given.get("default_factory")
                    value = ast.Call(factory, [], []) if factory else given.get("default")
                found[x.target.id] = (x.annotation, value, base.__module__)
    return found


def arguments(node: ast.FunctionDef, module: str) -> dict[str, Argument]:
    """Returns the arguments of a function."""
    a = node.args
    named = [*a.posonlyargs, *a.args, *a.kwonlyargs]
    positional = [None] * (len(a.posonlyargs) + len(a.args) - len(a.defaults)) + a.defaults
    found = {x.arg: (x.annotation, d, module) for x, d in zip(named, [*positional, *a.kw_defaults])}
    for x in (a.vararg, a.kwarg):
        if x is not None:
            found[x.arg] = (x.annotation, None, module)
    return found


def signature(obj: Any) -> tuple[str, str | None] | None:
    """Returns the arguments and the return annotation of a class, function or method."""
    returns, made = None, ""
    if inspect.isclass(obj):
        init = inspect.unwrap(obj.__init__)
        node = definition(init)
        if dataclasses.is_dataclass(obj) or hasattr(obj, "_fields"):
            found = fields(obj)
        elif isinstance(node, ast.FunctionDef):
            found = arguments(node, init.__module__)
        else:
            return None
    else:
        obj = inspect.unwrap(getattr(obj, "__func__", obj))
        node = definition(obj)
        if not isinstance(node, ast.FunctionDef):
            return None
        found = arguments(node, obj.__module__)
        if node.returns is not None:
            returns = annotation(node.returns, obj.__module__)
    parameters = list(inspect.signature(obj).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    texts, star = [], False
    for i, p in enumerate(parameters):
        hint, value, module = found.get(p.name, (None, None, ""))
        if p.kind is p.KEYWORD_ONLY and not star:
            texts.append("*")
        star |= p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        text = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + p.name
        if hint is not None and "Unpack[" not in (made := annotation(hint, module)):
            text += f": {made}"
        if value is not None:
            text += f" = {default(value, module)}"
        texts.append(text)
        after = parameters[i + 1].kind if i + 1 < len(parameters) else None
        if p.kind is p.POSITIONAL_ONLY and after is not p.POSITIONAL_ONLY:
            texts.append("/")
    return f"({', '.join(texts)})", returns


def process_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, args: str | None, returns: str | None
) -> tuple[str | None, str | None] | None:
    """Replaces the signature of autodoc, which would expand type aliases."""
    del app, name, options, args, returns
    return signature(obj) if what in ("class", "function", "method") else None


def process_bases(app: Sphinx, name: str, obj: Any, options: Any, bases: list[Any]) -> None:
    """Shows public bases only, under their public paths."""
    del app, name, obj, options
    public = [public_paths().get((x.__module__, x.__qualname__)) for x in bases]
    bases[:] = [f":class:`~{path}`" for path in public if path]


def skip_member(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Skips fields that autodoc documents as members; the class docstring describes them."""
    del app, name, skip, options
    is_function_field = inspect.isfunction(obj) and "." not in obj.__qualname__
    return True if (what == "class" and is_function_field) or is_tuple_field(obj) else None


def is_tuple_field(obj: Any) -> bool:
    """Whether a class attribute is a field of a named tuple."""
    return type(obj).__name__ == "_tuplegetter"


def documented(node: ast.AST | None, module: str) -> str:
    """Returns the string literal below an assignment."""
    body = parse(module)[1].body
    if node not in body:
        return ""
    after = body[body.index(node) + 1 : body.index(node) + 2]  # type: ignore[arg-type]
    match after:
        case [ast.Expr(value=ast.Constant(value=str() as text))]:
            return inspect.cleandoc(text)
    return ""


def documented_bases(cls: type) -> list[str]:
    """Returns the bases whose members are not repeated: public or of other libraries."""
    own = [x for x in cls.__mro__[1:] if x.__module__.partition(".")[0] == "crl_jax"]
    hidden = {x for x in own if (x.__module__, x.__qualname__) not in public_paths()}
    return [x.__name__ for x in cls.__mro__[1:] if x not in hidden]


def describe(package: str, name: str) -> Iterator[str]:
    """Yields the reStructuredText of one public name."""
    obj = getattr(sys.modules[package], name)
    module, _, node = exports(package)[name]
    path = f"{package}.{name}"
    if inspect.isclass(obj):
        kind = "exception" if issubclass(obj, BaseException) else "class"
        yield from (f".. auto{kind}:: {path}", "   :members:")
        if any((x.__module__, x.__qualname__) in public_paths() for x in obj.__bases__):
            yield "   :show-inheritance:"
        if kind == "class":
            yield f"   :inherited-members: {', '.join(documented_bases(obj))}"
        yield ""
        return
    if isinstance(node, ast.FunctionDef):
        yield from (f".. autofunction:: {path}", "")
        return
    assert isinstance(node, ast.Assign | ast.AnnAssign), path
    assert node.value is not None
    if inspect.isfunction(obj):
        yield f".. py:function:: {name}({', '.join(inspect.signature(obj).parameters)})"
    else:
        yield f".. py:data:: {name}"
    yield f"   :module: {package}"
    if not isinstance(obj, dict) and not inspect.isfunction(obj):
        yield f"   :value: {annotation(node.value, module).replace('~', '')}"
    text = documented(node, module)
    if not text:
        LOGGER.warning("%s has no docstring below its definition in %s", path, module)
    yield from ("", *(f"   {line}".rstrip() for line in text.splitlines()), "")


def group_of(package: str, module: str) -> str:
    """Returns the heading of a module.

    Raises:
      ExtensionError: If the package has headings, but none for the module.
    """
    own = module.removeprefix(f"{package}.").removeprefix("crl_jax.").split(".")
    for part in own:
        for heading, modules in GROUPS[package].items():
            if part in modules.split():
                return heading
    raise ExtensionError(f"GROUPS[{package!r}] has no heading for {module}")


def page(package: str) -> str:
    """Returns the Markdown of a package's reference."""
    groups: dict[str, list[str]] = {h: [] for h in GROUPS.get(package, {"": ""})}
    for exported, (module, _, _) in exports(package).items():
        groups[group_of(package, module) if package in GROUPS else ""].append(exported)
    lines = ["```{eval-rst}", f".. automodule:: {package}", "```", ""]
    name = package.partition(".")[2]
    if (ROOT / "docs" / "guide" / f"{name}.md").exists():
        lines += [f"The [user guide](../guide/{name}.md) has examples and advice.", ""]
    for heading, names in groups.items():
        if heading:
            lines += [f"## {heading}", ""]
        lines += ["```{eval-rst}", f".. py:currentmodule:: {package}", ""]
        lines += [line for name in names for line in describe(package, name)]
        lines += ["```", ""]
    return "\n".join(lines)


def expand(app: Sphinx, docname: str, source: list[str]) -> None:
    """Replaces the ``api`` blocks of a page."""
    for match in BLOCK.finditer(source[0]):
        app.env.note_dependency(str(parse(match[1])[0]), docname=docname)
        app.env.note_dependency(__file__, docname=docname)
    source[0] = BLOCK.sub(lambda m: page(m[1]), source[0])


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """Returns the address of the source of an object."""
    if domain != "py" or not info["module"]:
        return None
    name, *rest = info["fullname"].split(".")
    module, _, node = resolve(info["module"], name)
    if rest:
        obj: Any = getattr(sys.modules[info["module"]], name)
        for part in rest:
            obj = inspect.getattr_static(obj, part, None)
        obj = getattr(obj, "fget", None) or getattr(obj, "__func__", obj)
        obj = inspect.unwrap(obj) if callable(obj) else None
        node, module = definition(obj), getattr(obj, "__module__", "")
    if not isinstance(node, ast.stmt):
        return None
    path = parse(module)[0].relative_to(ROOT).as_posix()
    return f"{SOURCE}{path}#L{node.lineno}-L{node.end_lineno}"


EXTERNAL = {
    "jax": "https://docs.jax.dev/en/latest/_autosummary/{}.html",
    "numpy": "https://numpy.org/doc/stable/reference/generated/{}.html",
    "scipy": "https://docs.scipy.org/doc/scipy/reference/generated/{}.html",
    "jaxtyping": "https://docs.kidger.site/jaxtyping/api/array/",
    "optax": "https://optax.readthedocs.io/en/latest/",
    "flax": "https://flax.readthedocs.io/en/latest/",
}
"""Documentation of other libraries. It is linked without their inventories, so that a build needs
no network."""
ALIASES = {"jaxtyping.Array": "jax.Array", "jax.numpy.ndarray": "jax.Array"}


def link_external(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.TextElement
) -> nodes.Node | None:
    """Links names of other libraries; other types in signatures remain text."""
    del app, env
    target = ALIASES.get(node.get("reftarget", ""), node.get("reftarget", ""))
    library = target.partition(".")[0]
    if node.get("refdomain") != "py":
        return None
    if library in EXTERNAL:
        return nodes.reference("", "", contnode, refuri=EXTERNAL[library].format(target))
    return contnode if isinstance(contnode, nodes.Text) else None


def public_path(text: str, package: str) -> str | None:
    """Returns the path of a public name in inline code, or None.

    The code may be a name such as ``losses.bpr``, a call, or an attribute of a class.
    """
    code = re.match(r"[\w.]+", text.removeprefix("crl_jax."))
    parts = code[0].split(".") if code and re.fullmatch(r"[\w.]+(\(.*\))?", text) else []
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        for owner in (package, *PACKAGES):
            prefix = "" if owner == package else f"{owner.removeprefix('crl_jax.')}."
            own = name.removeprefix(prefix)
            if owner and name.startswith(prefix) and own in exports(owner):
                whole = end == len(parts) or inspect.isclass(getattr(sys.modules[owner], own))
                return f"{owner}.{own}" if whole else None
    return None


def link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Links inline code that is a public name, except on the pages of the reference.

    On the page of a package in the user guide this includes bare names if they are in a table or
    cannot be an ordinary word.
    """
    docname = app.env.docname
    folder, _, page = docname.rpartition("/")
    if folder == "api":
        return
    package = f"crl_jax.{page}" if f"crl_jax.{page}" in PACKAGES and folder == "guide" else ""
    for node in list(doctree.findall(nodes.literal)):
        text, parent = node.astext(), node.parent
        if isinstance(parent, nodes.reference | nodes.title | pending_xref):
            continue
        is_cell = isinstance(parent.parent, nodes.entry)
        is_word = text.isalpha() and text.islower()
        path = None if is_word and not is_cell else public_path(text, package)
        if path is not None:
            node["classes"] += ["xref", "py"]
            options = dict(refdomain="py", reftype="obj", reftarget=path, refdoc=docname)
            parent.replace(node, pending_xref("", node.deepcopy(), refwarn=True, **options))


def forget_private_names(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Removes the private paths that autodoc registers as further names of the same objects."""
    del app
    objects = env.domains.python_domain.objects
    for name in [name for name in objects if "._" in name]:
        del objects[name]
    return []


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the extension."""
    for kind in ObjectDescription.__subclasses__():
        for field in getattr(kind, "doc_field_types", ()):
            if field.name == "variable":
                field.label = "Attributes"  # napoleon's fields of a section "Attributes"
    app.connect("source-read", expand)
    app.connect("doctree-read", link_names)
    app.connect("env-updated", forget_private_names)
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-process-bases", process_bases)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("missing-reference", link_external)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
