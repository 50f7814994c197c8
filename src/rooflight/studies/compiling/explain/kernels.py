"""Which ops became which kernel of Inductor's, and the bytes that this saves."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rooflight.studies.compiling.explain.graph_text import frames
from rooflight.studies.compiling.explain.result import Kernel, SourceLine, of_library, total
from rooflight.studies.compiling.explain.trace import Group, Heard, Lowered, Node

_DEFINED: Final = re.compile(r"^(\w+) = async_compile\.\w+\(", re.MULTILINE)
Direction = Literal["forward", "backward", "inference"]


@dataclass(slots=True)
class _Compiled:
    lowered: Lowered
    direction: Direction
    code: str = ""


@dataclass(slots=True)
class _Made:
    """A kernel while its bytes are being attributed. ``own``: the nodes that it computes."""

    name: str
    compiled: _Compiled
    library: bool
    groups: list[Group] = field(default_factory=list)
    eager: list[tuple[str, int | None]] = field(default_factory=list)

    @property
    def own(self) -> frozenset[str]:
        return frozenset[str]().union(*(group.nodes for group in self.groups))


def kernels(heard: Heard, *, code: bool = False) -> tuple[Kernel, ...]:
    """All kernels, in the order that their graphs were compiled and then called. ``code``: with their sources."""
    by_id: dict[str, list[_Made]] = defaultdict(list)
    for compiled in _compiled(heard):
        by_id[compiled.lowered.id] += _kernels_of(compiled)
    found = []
    for id_, made in by_id.items():
        _attribute(heard.joint.get(id_, ()), made)
        found += [_kernel(id_, each, code=code) for each in made]
    return tuple(found)


def _compiled(heard: Heard) -> list[_Compiled]:
    training = {each.id for each in heard.of("aot_joint_graph")}
    found: list[_Compiled] = []
    for entry in heard.entries:
        if isinstance(entry, Lowered):
            backward = any(not node.op and node.name.startswith("tangents") for node in entry.nodes)
            direction: Direction = "backward" if backward else "forward" if entry.id in training else "inference"
            found.append(_Compiled(lowered=entry, direction=direction))
        elif found and entry.name == "inductor_output_code":
            found[-1].code = entry.text
    return found


def _kernels_of(compiled: _Compiled) -> list[_Made]:
    """In order, each with the scheduler's groups that became it: the code calls libraries by the groups' names."""
    lines, called = _calling(compiled.code)
    made: list[_Made] = []
    waiting: list[Group] = []

    def generated(until: int) -> None:
        names = [found[1] for line in lines[:until] if (found := called.search(line))]
        del lines[:until]
        if len(names) == len(waiting):
            made.extend(_Made(name, compiled, False, [group]) for name, group in zip(names, waiting, strict=True))
        elif names:
            made.extend(_Made(name, compiled, False, list(waiting)) for name in names[:1])
            made.extend(_Made(name, compiled, False) for name in names[1:])
        waiting.clear()

    for group in compiled.lowered.groups:
        if not group.library:
            waiting.append(group)
            continue
        at = next((number for number, line in enumerate(lines) if f"{group.library}(" in line), 0)
        generated(at)
        made.append(_Made(group.library, compiled, True, [group]))
        del lines[:1]
    generated(len(lines))
    return made


def generated_calls(code: str) -> int:
    """How many kernels of Inductor's own its generated code calls; library calls are not among them."""
    lines, called = _calling(code)
    return sum(called.search(line) is not None for line in lines)


def _calling(code: str) -> tuple[list[str], re.Pattern[str]]:
    defined = _DEFINED.findall(code)
    names = "|".join(map(re.escape, defined)) if defined else "(?!)"  # which matches nothing
    return code[code.find("async_compile.wait") :].splitlines(), re.compile(rf"\b({names})(?:\.run)?\(")


def _attribute(joint: Sequence[Node], made: list[_Made]) -> None:
    """Give each call of eager, with the bytes it moves, to the kernel that computes its result.

    A call whose nodes Inductor's passes replaced belongs to the kernel of what they put in its place: a node that was
    not there before, and that the first op that uses the call's result reads; if there is none, to that op's kernel.
    """
    owner: dict[str, _Made] = {}
    for each in made:
        for name in sorted(each.own):
            owner.setdefault(name, each)
    for node in joint:
        if node.op == "getitem" and node.reads and node.reads[0] in owner:  # one of several results
            owner.setdefault(node.name, owner[node.reads[0]])
    by_name = {node.name: node for node in joint}
    put_in = {
        node.name: [read for read in node.reads if read not in by_name and read in owner]
        for compiled in {id(each.compiled): each.compiled for each in made}.values()
        for node in compiled.lowered.nodes
    }
    users: dict[str, list[str]] = defaultdict(list)
    for node in joint:
        for read in node.reads:
            users[read].append(node.name)
    for op, nodes in eager_calls(joint):
        inside = {node.name for node in nodes}
        if all(node.view for node in nodes):
            continue
        results = [node for node in nodes if not users[node.name] or not inside.issuperset(users[node.name])]
        found = _owner([node.name for node in reversed(results or nodes)], owner, users, put_in)
        if found is not None:
            reads = {read for node in nodes for read in node.reads if read in by_name and read not in inside}
            sizes = [*(by_name[name].bytes for name in reads), *(node.bytes for node in results)]
            found.eager.append((op, total(sizes)))


def eager_calls(joint: Sequence[Node]) -> Iterator[tuple[str, list[Node]]]:
    """The calls of eager that nodes come of: the op of each, and its nodes in order."""
    calls: dict[Any, list[Node]] = {}
    keys: dict[str, Any] = {}
    for node in joint:
        if node.op == "getitem" and node.reads and node.reads[0] in keys:
            key = keys[node.reads[0]]  # one of the results of a call
        elif node.op and node.eager is not None:
            key = (node.eager[0], node.name) if node.op == node.eager[0] else node.eager
        else:
            continue
        keys[node.name] = key
        calls.setdefault(key, []).append(node)
    for (op, _), nodes in calls.items():
        yield op, nodes


def _owner(
    names: Iterable[str],
    owner: Mapping[str, _Made],
    users: Mapping[str, list[str]],
    put_in: Mapping[str, list[str]],
) -> _Made | None:
    waiting, seen = list(names), set[str]()
    results = set(waiting)
    while waiting:
        name = waiting.pop(0)
        if name in owner:
            new = [] if name in results else put_in.get(name, [])
            return owner[new[0]] if new else owner[name]
        if name not in seen:
            seen.add(name)
            waiting += users.get(name, [])
    return None


def _kernel(id_: str, made: _Made, *, code: bool) -> Kernel:
    nodes = [node for node in made.compiled.lowered.nodes if node.name in made.own]
    ops = tuple(node.op for node in nodes if not node.view and node.op != "getitem")
    places: dict[tuple[str, int], SourceLine] = {}
    for node in nodes:
        for frame in [frame for frame in frames(node.stack) if not of_library(frame.file)][-1:]:
            places.setdefault((frame.file, frame.line), frame)
    return Kernel(
        id=id_,
        name=made.name,
        kind="library" if made.library else "fused" if len(ops) > 1 else "single",
        direction=made.compiled.direction,
        ops=ops,
        eager_ops=tuple(op for op, _ in made.eager),
        places=tuple(places.values()),
        bytes_eager=total(size for _, size in made.eager),
        bytes_kernel=total(group.bytes for group in made.groups) if made.groups else None,
        code=_code(made) if code else "",
    )


def _code(made: _Made) -> str:
    text = made.compiled.code
    name = re.escape(made.name)
    defined = re.search(rf"^{name} = async_compile\.\w+\(.*?'''\n(.*?)^'''", text, re.MULTILINE | re.DOTALL)
    if defined is not None:
        return defined[1]
    called = re.search(rf"^\s*(.*{name}\(.*)$", text, re.MULTILINE)
    return "" if called is None else called[1] + "\n"
