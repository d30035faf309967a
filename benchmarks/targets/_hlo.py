"""Counts of an optimised HLO module: kernels, cycles, indexed accesses, traffic and collectives.

The text of a compiled program (``compiled.as_text()``) is read without running anything. Operations
in a loop count as often as the loop runs, if its trip count is known, and once otherwise; of the
branches of a conditional, the largest count of each kind is taken.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*->.*\{\s*$")
_START = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](\{[^}]*\})?")
_BITS = re.compile(r"\d+")
_FREE = frozenset((
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "partition-id",
    "replica-id", "opt-barrier", "add-dependency", "domain",
))  # fmt: skip
_COLLECTIVES = (
    "all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute",
    "collective-broadcast", "ragged-all-to-all",
)  # fmt: skip
_HOST = ("infeed", "outfeed", "send", "recv")
TABLE_BYTES = 2**22
"""Smallest operand that counts as a table for ``table_gathers``."""


class Shape(NamedTuple):
    """Array type of an instruction; ``on_chip`` for arrays in the vector memory of a TPU."""

    dtype: str
    sizes: tuple[int, ...]
    on_chip: bool

    @property
    def n(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Size without padding."""
        if self.dtype in ("pred", "token", "opaque"):
            return self.n if self.dtype == "pred" else 0
        bits = _BITS.search(self.dtype)
        return -(-self.n * int(bits[0]) // 8) if bits else 0


def parse_shapes(text: str) -> list[Shape]:
    """Returns the arrays of a type, which may be a tuple."""
    return [
        Shape(kind, tuple(int(size) for size in sizes.split(",") if size), "S(1)" in layout)
        for kind, sizes, layout in _ARRAY.findall(text)
    ]


@dataclass(frozen=True)
class Instruction:
    """Line of a computation, such as ``%sum = f32[8]{0} add(%a, %b), metadata={...}``."""

    name: str
    type: str
    op: str
    arguments: str
    attributes: str
    is_root: bool

    @cached_property
    def operands(self) -> list[str]:
        """Names of the operands."""
        return re.findall(r"%([\w.\-]+)", self.arguments)

    @cached_property
    def shapes(self) -> list[Shape]:
        """Arrays of the result."""
        return parse_shapes(self.type)

    @property
    def bytes(self) -> int:
        """Size of the result in main memory."""
        return sum(shape.bytes for shape in self.shapes if not shape.on_chip)

    def called(self, key: str) -> list[str]:
        """Returns the computations that an attribute names."""
        match = re.search(rf"\b{key}=(\{{[^}}]*\}}|%?[\w.\-]+)", self.attributes)
        return re.findall(r"[\w.\-]+", match[1]) if match else []


def _closing(text: str, start: int) -> int:
    """Returns the index of the parenthesis that closes the one at ``start``."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if not depth:
            return index
    raise ValueError(f"`text` must close its parentheses, got {text[start : start + 80]!r}.")


def parse(line: str) -> Instruction | None:
    """Returns the instruction of a line, or None for other lines."""
    if (match := _START.match(line)) is None:
        return None
    root, name, definition = match.groups()
    end = _closing(definition, 0) + 1 if definition.startswith("(") else definition.find(" ")
    call = definition[end:].lstrip()
    opening = call.find("(")
    if end < 0 or opening < 0:
        return None
    closing = _closing(call, opening)
    arguments, attributes = call[opening + 1 : closing], call[closing + 1 :]
    return Instruction(
        name, definition[:end], call[:opening], arguments, attributes, root is not None
    )


class Module:
    """Optimised HLO module.

    Args:
      text: Text of a compiled program.
      floor: Least bytes per kernel in ``bounded``: those that the device would move while it
        launches a kernel.
      schedule: Cycles of each instruction by name.

    Raises:
      ValueError: If the text has no entry computation.
    """

    def __init__(self, text: str, floor: int = 0, schedule: Mapping[str, int] | None = None):
        self.floor, self.schedule = floor, schedule or {}
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        body: dict[str, Instruction] | None = None
        for line in text.splitlines():
            if body is None:
                if head := _HEAD.match(line):
                    body = self.computations.setdefault(head[2], {})
                    self.entry = head[2] if head[1] else self.entry
            elif line.startswith("}"):
                body = None
            elif instruction := parse(line):
                body[instruction.name] = instruction
        if not self.entry:
            raise ValueError("`text` must be an HLO module with an entry computation.")
        self._counts: dict[tuple[str, bool], Counter[str]] = {}
        self._users_cache: dict[str, dict[str, list[Instruction]]] = {}

    def counts(self) -> Counter[str]:
        """Returns the totals of one execution.

        * ``kernels``: launched operations: fusions, library calls, copies, sorts, collectives;
        * ``cycles``: estimates of a TPU's compiler, which has none for sorts, many gathers and
          scatters, and custom kernels; ``scheduled``: those of the schedule;
        * ``gathered``, ``scattered``: slices that are read or written by index; ``sorted``:
          elements of sorts;
        * ``table_gathers``: gathers that read at least as much as an operand of 4 MiB or more has;
        * ``traffic``: bytes that kernels read from and write to main memory at least: operands and
          results, of indexed accesses only the slices;
        * ``bounded``: the same, at least ``floor`` per kernel;
        * ``copied``: the part of ``traffic`` of copies and transposes;
        * ``collectives``, ``collective_bytes``, ``KIND_bytes``: messages between devices, and the
          bytes of their results per device;
        * ``open_loops``: loops whose trip count depends on data, which count once;
        * ``float64``, ``host``: operations in double precision, and transfers to the host.
        """
        return self._count(self.entry, False)

    def _count(self, computation: str, fused: bool) -> Counter[str]:
        key = computation, fused
        if key not in self._counts:
            total: Counter[str] = Counter()
            self._counts[key] = total
            for instruction in self.computations.get(computation, {}).values():
                total.update(self._count_instruction(computation, instruction, fused))
        return self._counts[key]

    def _count_instruction(self, computation: str, x: Instruction, fused: bool) -> Counter[str]:
        if x.op == "while":
            return self._count_loop(x)
        if x.op == "conditional":
            names = ("branch_computations", "true_computation", "false_computation")
            return _largest(self._count(c, False) for name in names for c in x.called(name))
        if x.op in ("call", "async-start"):
            total: Counter[str] = Counter()
            for name in x.called("to_apply") or x.called("calls"):
                total.update(self._count(name, fused))
            return total
        total = self._indexed(computation, x)
        if "f64[" in x.type and x.op not in _FREE:
            total["float64"] += 1
        base = x.op.removesuffix("-start")
        if base in _HOST or (base == "custom-call" and "callback" in x.attributes):
            total["host"] += 1
        if base in _COLLECTIVES:
            sent = self._message(computation, x)
            total.update({"collectives": 1, "collective_bytes": sent, f"{base}_bytes": sent})
        if x.op == "fusion":
            for name in x.called("calls"):
                total.update(self._count(name, True))
        if fused or x.op in _FREE or x.op.endswith(("-done", "-update")):
            return total
        total["kernels"] += 1
        if cycles := re.search(r'"estimated_cycles":"(\d+)"', x.attributes):
            total["cycles"] += int(cycles[1])
        total["scheduled"] += self.schedule.get(x.name, 0)
        if base not in _COLLECTIVES:
            moved = self._traffic(computation, x)
            total.update(traffic=moved, bounded=max(moved, self.floor))
            if base in ("copy", "transpose") or x.name.startswith(("copy", "transpose")):
                total["copied"] += moved
        return total

    def _count_loop(self, x: Instruction) -> Counter[str]:
        (body,), (condition,) = x.called("body"), x.called("condition")
        trips = self.trip_count(x)
        total: Counter[str] = Counter() if trips is not None else Counter(open_loops=1)
        for name in (body, condition):
            for kind, value in self._count(name, False).items():
                total[kind] += value * (1 if trips is None else trips)
        return total

    def trip_count(self, loop: Instruction) -> int | None:
        """Returns the number of iterations, or None if the module does not state it.

        The compiler states it, or the condition compares with its only integer constant.
        """
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(known[1])
        names, bounds, roots = loop.called("condition"), [], []
        for name in names:  # grows by the computations of fusions
            for x in self.computations.get(name, {}).values():
                names += x.called("calls") if x.op == "fusion" else ()
                roots += [x] if x.is_root and x.op != "fusion" else ()
                if x.op == "constant" and re.match(r"[su]\d+\[\]", x.type):
                    bounds.append(int(x.arguments))
        is_counter = len(roots) == 1 and "direction=LT" in roots[0].attributes
        return bounds[0] if is_counter and len(bounds) == 1 else None

    def _operand(self, computation: str, x: Instruction, i: int) -> Instruction | None:
        return self.computations[computation].get(x.operands[i]) if i < len(x.operands) else None

    def _indexed(self, computation: str, x: Instruction) -> Counter[str]:
        """Counts of a gather, scatter or sort."""
        total: Counter[str] = Counter()
        if x.op == "gather":
            n = x.shapes[0].n // max(1, math.prod(_integers(x, "slice_sizes")))
            table = self._operand(computation, x, 0)
            total["gathered"] = n
            if table and table.shapes[0].bytes >= TABLE_BYTES:
                total["table_gathers"] = int(x.shapes[0].n >= table.shapes[0].n)
        elif x.op == "scatter" and (updates := self._updates(computation, x)):
            window = set(_integers(x, "update_window_dims"))
            sizes = enumerate(updates[0].shapes[0].sizes)
            total["scattered"] = math.prod(size for axis, size in sizes if axis not in window)
        elif x.op == "sort" or "__cub$" in x.attributes:
            keys = self._operand(computation, x, 0)
            total["sorted"] = keys.shapes[0].n if keys else 0
        return total

    def _updates(self, computation: str, scatter: Instruction) -> list[Instruction]:
        names = scatter.operands[len(scatter.operands) // 2 + 1 :]
        instructions = self.computations[computation]
        return [instructions[name] for name in names if name in instructions]

    def _message(self, computation: str, x: Instruction) -> int:
        """Bytes per device of the result of a collective."""
        shapes = x.shapes
        if x.op in ("all-gather-start", "collective-permute-start"):  # operands, results, context
            shapes = shapes[len(x.operands) : 2 * len(x.operands)]
        return sum(shape.bytes for shape in shapes)

    def _traffic(self, computation: str, x: Instruction) -> int:
        """Bytes that a kernel reads from and writes to main memory."""
        if x.op == "copy-start":  # result, operand, context
            return sum(shape.bytes for shape in x.shapes[:2] if not shape.on_chip)
        read = sum(self._read(computation, x, i) for i in range(len(x.operands)))
        return read + self._written(computation, x, x.bytes)

    def _read(self, computation: str, x: Instruction, i: int) -> int:
        """Bytes that an instruction reads of an operand."""
        operand = self._operand(computation, x, i)
        full_bytes = operand.bytes if operand else 0
        if x.op in ("dynamic-update-slice", "scatter") and i == 0:
            return 0
        if x.op in ("gather", "dynamic-slice", "slice") and i == 0:
            return min(full_bytes, sum(shape.bytes for shape in x.shapes))
        if x.op != "fusion" or not full_bytes:
            return full_bytes
        (inner,) = x.called("calls")
        return min(full_bytes, sum(self._reads(inner, p.name) for p in self._parameters(inner, i)))

    def _parameters(self, computation: str, i: int) -> list[Instruction]:
        instructions = self.computations.get(computation, {}).values()
        return [x for x in instructions if x.op == "parameter" and x.arguments == str(i)]

    def _reads(self, computation: str, name: str) -> int:
        """Bytes that all users of a value inside a fusion read of it."""
        total = 0
        for user in self._users(computation).get(name, ()):
            if user.op in ("bitcast", "reshape"):
                total += self._reads(computation, user.name)
            else:
                indices = [i for i, operand in enumerate(user.operands) if operand == name]
                total += sum(self._read(computation, user, i) for i in indices)
        return total

    def _users(self, computation: str) -> dict[str, list[Instruction]]:
        if computation not in self._users_cache:
            users: dict[str, list[Instruction]] = {}
            for x in self.computations.get(computation, {}).values():
                for name in dict.fromkeys(x.operands):
                    users.setdefault(name, []).append(x)
            self._users_cache[computation] = users
        return self._users_cache[computation]

    def _written(self, computation: str, x: Instruction, full_bytes: int) -> int:
        """Bytes that an instruction writes; a scatter also reads what it adds to."""
        instructions = self.computations.get(computation, {})
        if x.op == "dynamic-update-slice":
            update = self._operand(computation, x, 1)
            return min(full_bytes, update.bytes) if update else full_bytes
        if x.op == "scatter":
            return min(
                2 * full_bytes, 2 * sum(update.bytes for update in self._updates(computation, x))
            )
        if x.op == "bitcast" and x.operands[0] in instructions:
            return self._written(computation, instructions[x.operands[0]], full_bytes)
        if x.op != "fusion":
            return full_bytes
        (inner,) = x.called("calls")
        roots = [y for y in self.computations.get(inner, {}).values() if y.is_root]
        if roots and roots[0].op == "tuple":
            roots = [self.computations[inner][name] for name in roots[0].operands]
        if len(roots) != len(x.shapes):
            return full_bytes
        return sum(
            self._written(inner, root, shape.bytes)
            for root, shape in zip(roots, x.shapes)
            if not shape.on_chip
        )


def _integers(x: Instruction, key: str) -> list[int]:
    """Values of an attribute such as ``slice_sizes={1,64}``."""
    return [int(value) for value in x.called(key)]


def _largest(counts: Iterable[Counter[str]]) -> Counter[str]:
    """Largest count of each kind."""
    total: Counter[str] = Counter()
    for count in counts:
        total |= count
    return total
