"""What ends a graph, compiles it again or keeps it from CUDA graphs, from torch's own texts, and what removes each.

What removes each is in ``advice.toml``, but for guards on sizes and values, whose names it needs.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from rooflight.studies.compiling.explain.graph_text import frames, function_name
from rooflight.studies.compiling.explain.result import (
    CudaGraphEvent,
    FailedGuard,
    GraphBreak,
    Guard,
    Recompile,
    SourceLine,
    of_library,
    place_of,
)
from rooflight.studies.compiling.explain.trace import Entry

_WHOLE: Final = ("Skipping the function and falling back to eager", "skipping the rest of the function")
_AGAIN: Final = "user stack suppressed due to duplicate graph break"
_PACKAGE: Final = re.compile(r"/site-packages/(\w+)/")
_MORE: Final = re.compile(r"https://\S+")
_EXAMPLE: Final = re.compile(r"\(e\.g\. [^)]*\)")
_BUILTIN: Final = re.compile(r"builtin operator (`\w+`)")

_OTHERWISE: Final = "move the line before or after the compiled function, or wrap it as torch.library.custom_op"
_ID: Final = re.compile(r"^\[([^\]]*)\] ")
_EVENTS: Final[dict[Literal["recorded again", "recorded", "skipped", "warning"], re.Pattern[str]]] = {
    "recorded again": re.compile(r"Re-recording function=.*?reason=(.*)$", re.DOTALL),
    "recorded": re.compile(r"Recording cudagraph tree for (.+)$"),
    "skipped": re.compile(r"^(?:(?:skipping|disabling) cudagraphs (?:for backward )?due to )+(.*)$", re.DOTALL),
    "warning": re.compile(r"CUDAGraph supports dynamic shapes by recording .*?observed (\d+) distinct", re.DOTALL),
}


@lru_cache(maxsize=1)
def _table() -> dict[str, list[dict[str, str]]]:
    return tomllib.loads(Path(__file__).with_name("advice.toml").read_text(encoding="utf-8"))


def _advice(kind: str, text: str) -> str:
    return next((row["advice"] for row in _table()[kind] if re.search(row["pattern"], text)), "")


def graph_breaks(texts: Iterable[str], cuts: Iterable[bool] = ()) -> tuple[GraphBreak, ...]:
    """The breaks that texts of ``dynamo_graph_break_reason`` tell of, each line and reason once, in order; whether each
    ``cuts`` a graph in two.
    """
    found: dict[tuple[str, str, int], GraphBreak] = {}
    for text, two in zip(texts, chain(cuts, repeat(True)), strict=False):
        each = graph_break(text)
        each = msgspec.structs.replace(each, cuts=two or each.whole_function)
        key = (each.reason, each.place.file if each.place else "", each.place.line if each.place else 0)
        if (known := found.get(key)) is not None:
            whole = known.whole_function or each.whole_function
            each = msgspec.structs.replace(
                each if each.whole_function else known,
                times=known.times + 1,
                whole_function=whole,
                cuts=known.cuts or each.cuts,
            )
        found[key] = each
    return tuple(found.values())


def graph_break(text: str) -> GraphBreak:
    """One graph break from torch's text of it."""
    head, _, rest = text.partition("User code traceback:")
    rows = [row.strip() for row in head.splitlines()]
    reason = _reason(rows)
    explanation = " ".join(row.partition("Explanation:")[2].strip() for row in rows if row.startswith("Explanation:"))
    if reason.endswith("builtin operator") and (named := _BUILTIN.search(explanation)) is not None:
        reason += f" {named[1]}"
    hints = tuple(row.removeprefix("Hint:").strip() for row in rows if row.startswith("Hint:"))
    context = " ".join(row for row in rows if row.startswith("Developer debug context:"))
    more = _MORE.search(head)
    stack = list(frames(rest.partition("Traceback (most recent call last)")[0]))
    place = _break_place(rows, stack)
    own = bool(stack) and "graph_break()" in reason and of_library(stack[-1].file)
    reason += ", in torch itself" * own
    whole = any(text in head for text in _WHOLE)
    statement = "" if place is None else f" in {place.code.partition(' ')[0]} statement"
    package = None if place is None else _PACKAGE.search(place.file)
    library = "" if package is None else f"in {package[1]}: compile the parts before and after it, or, if you can, "
    helps = rewrite(f"{reason}{statement} {_EXAMPLE.sub('', explanation)} {context}")
    return GraphBreak(
        reason=reason,
        explanation=explanation,
        hints=hints,
        place=place,
        rewrite="" if own else library + helps + "; and out of a try or with block" * whole,
        times=1,
        whole_function=whole,
        more="" if more is None else more[0],
    )


def logged_breaks(texts: Iterable[str]) -> tuple[str, ...]:
    """``train.py:12: Data-dependent branching``: the breaks in texts of torch's log ``graph_breaks``, in order."""
    found = graph_breaks(text for text in texts if _AGAIN not in text)
    return tuple(": ".join(filter(None, (place_of(each.place), each.reason))) for each in found)


def rewrite(text: str) -> str:
    """What removes a break, by its reason and explanation."""
    return _advice("graph_break", text) or _OTHERWISE


def _reason(rows: list[str]) -> str:
    for whole in rows:
        row = whole.partition("Graph Break Reason:")[2].strip() if "Graph Break Reason:" in whole else whole
        if row and not row.startswith(("Graph break in user code", "Encountered graph break", "Failed to handle")):
            return row
    return "torch gives no reason"


def _break_place(rows: list[str], stack: Sequence[SourceLine]) -> SourceLine | None:
    if stack:  # the innermost line that is neither torch's nor Python's
        return next((frame for frame in reversed(stack) if not of_library(frame.file)), stack[-1])
    head = re.match(r"Graph break in user code at (.+):(\d+)$", rows[0]) if rows else None
    return None if head is None else SourceLine(file=head[1], line=int(head[2]))


_SOURCE: Final = re.compile(r"\+- \w*GuardManager: source=(.+?), accessed_by=")
_GUARD: Final = re.compile(r"\+- ([A-Z][A-Z_]+): (.+?)(?:  # ?(.*))?$")
_PLACE: Final = re.compile(r"^(.*?)\s*# (\S*):(\d+) in (\S+)$")
_LATENCY: Final = re.compile(r"^Guard latency = ([\d.]+) us", re.MULTILINE)
_INTERNAL: Final = frozenset(
    ("DIMENSION_DYNAMIC_MARKING_GUARD", "NO_TENSOR_ALIASING", "RELATIONAL_GUARD", "TORCH_FUNCTION_MODE_STACK")
)
_EQUAL: Final = re.compile(r"^(?P<source>.+?) == (?P<value>.+)$")


def guards(text: str, files: Iterable[str] = ()) -> tuple[Guard, ...]:
    """The guards in a printed tree, those on marks that only torch sets left out. torch cuts the names of files:
    ``files`` are those that may be meant.
    """
    known = tuple(files)
    found: list[Guard] = []
    source = ""
    for row in text.splitlines():
        if (manager := _SOURCE.search(row)) is not None:
            source = readable(manager[1])
        elif (leaf := _GUARD.search(row)) is not None and leaf[1] not in _INTERNAL:
            top = row.startswith("| +-")
            found.append(
                Guard(
                    kind=leaf[1], source="" if top else source, check=readable(leaf[2].strip()),
                    place=_guard_place(leaf[3] or "", known),
                )
            )  # fmt: skip
    return tuple(found)


def guard_s(text: str) -> float | None:
    """Seconds that checking all guards takes, as torch measured it."""
    found = _LATENCY.search(text)
    return None if found is None else float(found[1]) * 1e-6


def readable(source: str) -> str:
    """``L['x']``, torch's name of a local variable, as ``x``, and ``m._modules['d'].p`` as ``m.d.p``."""
    source = re.sub(r"L\['(\w+)'\]", r"\1", source)
    return re.sub(r"\._(?:modules|parameters|buffers)\['([a-z_]\w*)'\]", r".\1", source)


def _guard_place(comment: str, files: tuple[str, ...]) -> SourceLine | None:
    import torch

    found = _PLACE.match(comment)
    if found is None or (Path(torch.__file__).parent / found[2]).exists():  # torch's own, of which it cuts the folder
        return None
    whole = next((file for file in files if file.endswith(found[2])), found[2])
    return SourceLine(file=whole, line=int(found[3]), function=found[4], code=found[1].strip())


class Symbols:
    """What a compilation found: the values of symbols, and of what its guards compare; ``constants``: what it is
    compiled for one value of.
    """

    def __init__(self, created: Iterable[Any], checks: Iterable[Guard]) -> None:
        self.by_name: dict[str, int] = {}
        self._by_source: dict[str, str] = {}
        self.constants: set[str] = set()
        for fields in created:
            value = str(fields.get("val"))
            if value.lstrip("-").isdigit():
                self.by_name[str(fields.get("symbol"))] = int(value)
            self._by_source[readable(str(fields.get("source")))] = value
        for guard in checks:
            if (equal := _EQUAL.match(guard.check)) is not None:
                self.constants.add(equal["source"])
                self._by_source.setdefault(equal["source"], equal["value"])

    def value_of(self, source: str) -> str:
        """What a source was at this compilation, as text; empty if torch does not tell."""
        return self._by_source.get(source, "")


_TENSOR: Final = re.compile(r"tensor '(?P<source>.+?)' (?P<what>.+?) mismatch(?: at index (?P<index>\d+))?")
_EXPECTED: Final = re.compile(r"expected (?:requires_grad=)?(.+?)(?:, actual (.+?))?\.?$")
_LENGTH: Final = re.compile(r"^(?:len\((?P<source>.+)\) == (?P<value>\d+)|not (?P<empty>\S+))$")
_STATE: Final = re.compile(r"^GLOBAL_STATE changed: (.+)$")
_RECOMPILING: Final = re.compile(r"^Recompiling function (\S+) in (.+):(\d+)$")
_NAME: Final = re.compile(r"\b[A-Za-z_]\w*(?:\.\w+|\[[^\]]*\])*")
_SIZE: Final = re.compile(r"\w+\.size\(\)\[\d+\]")


def failed_guards(entry: Entry, values: Symbols) -> tuple[FailedGuard, ...]:
    """The guards that failed before a compilation, of the most recent compilation first."""
    texts: list[Any] = [entry.text]
    if entry.text.startswith("["):  # torch writes one reason as text, several as a list
        with suppress(ValueError):
            texts = json.loads(entry.text)
    return tuple(_failed(str(text), values) for text in texts)


def _failed(text: str, values: Symbols) -> FailedGuard:
    first = text.strip().partition("\n")[0]
    of, _, check = first.partition(": ")
    check = readable(check.partition("  #")[0].strip())
    if (tensor := _TENSOR.search(check)) is not None:
        found = _EXPECTED.search(check.partition(". ")[2])
        index = "" if tensor["index"] is None else f", dimension {tensor['index']}"
        expected, actual = ("", "") if found is None else (found[1], found[2] or "")
        if tensor["what"] == "requires_grad":  # of two values torch names the one
            actual = {"0": "1", "1": "0"}.get(expected, "")
        source = f"{tensor['what']} of {_plain(tensor['source'])}{index}"
        return FailedGuard(of=of, check=check, source=source, expected=expected, actual=actual)
    if (state := _STATE.match(check)) is not None:
        return FailedGuard(of=of, check=check, source=state[1])
    if (sizes := _SIZE.search(check)) is not None and not check.startswith(f"{sizes[0]} =="):
        source, expected = sizes[0], check
    elif (length := _LENGTH.match(check)) is not None:
        source, expected = f"len({length['source'] or length['empty']})", length["value"] or "0"
    elif (equal := _EQUAL.match(check)) is not None:
        source, expected = equal["source"], equal["value"]
    else:
        return FailedGuard(of=of, check=check)
    return FailedGuard(of=of, check=check, source=source, expected=expected, actual=values.value_of(source))


def logged_recompile(text: str) -> str:
    """``train.py:12, loss: size of x, dimension 0 was 48, and 32 when it was compiled``: a text of torch's log
    ``recompiles``, by the guard of the latest compilation that failed.
    """
    head, _, rest = text.partition("\n")
    row = next((row for row in map(str.strip, rest.splitlines()) if row.startswith("- ")), "")
    guard = _failed(row.removeprefix("- "), Symbols((), ()))
    if not guard.source or not guard.expected:
        why = f"{guard.source or guard.check or 'what it depends on'} changed"
    elif guard.actual:
        why = f"{guard.source} was {guard.actual}, and {guard.expected} when it was compiled"
    else:
        why = f"{guard.source} was not {guard.expected}, which it was compiled for"
    found = _RECOMPILING.match(head)
    if found is None:
        return why
    place = SourceLine(file=found[2], line=int(found[3]))
    return f"{', '.join(filter(None, (place_of(place), function_name(found[1]))))}: {why}"


def _plain(source: str) -> str:
    return source.removeprefix("___from_numpy(").removesuffix(")") if source.startswith("___from_numpy(") else source


def recompile(
    entry: Entry,
    function: str,
    place: SourceLine | None,
    values: Symbols,
    *,
    dynamic: bool | None = None,
    limit: bool = False,
    rest: bool = False,
    lasts: bool = False,
) -> Recompile:
    """A recompile: what failed, and the fix by the most recent compilation's guard. ``rest``: of the rest of a
    function after a graph break, whose inputs are what the part before it leaves.
    """
    guards = failed_guards(entry, values)
    advice = fix(guards, dynamic=dynamic, constants=values.constants)
    if rest and guards and (tensor := _TENSOR.search(guards[0].check)) is not None:
        advice = f"{tensor['source']} is made before the graph break: mend what changes there, or remove the break"
    return Recompile(
        id=entry.id, function=function, place=place, guards=guards, fix=advice, limit=limit, lasts=lasts or limit
    )


def fix(guards: Sequence[FailedGuard], *, dynamic: bool | None = None, constants: Container[str] = ()) -> str:
    """What prevents a recompile, by the guards that failed. The most recent compilation's comes first. ``constants``:
    what it is compiled for one value of again.
    """
    if not guards:
        return ""
    return _advice("recompile", guards[0].check) or _fix(guards[0], dynamic, constants)


def _fix(guard: FailedGuard, dynamic: bool | None, constants: Container[str]) -> str:
    check, source = guard.check, guard.source
    if (tensor := _TENSOR.search(check)) is not None:
        return _of_tensor(tensor, guard, dynamic)
    if re.search(r"%|<=|>=| < | > ", check):
        name = _variable(check)
        return f"the code branches on {name}: one compilation for each way, or a tensor {name} and torch.where"
    if _LENGTH.match(check):
        return f"{source} decides how often a loop is unrolled: pass one stacked tensor instead of a container, or pad"
    if _EQUAL.match(check):
        return _of_value(source, guard.expected, dynamic, still=source in constants)
    return "keep what the guard reads the same between calls, or compile a function for each case"


def _of_tensor(tensor: re.Match[str], guard: FailedGuard, dynamic: bool | None) -> str:
    if "size" not in tensor["what"]:
        return "pass tensors of one kind"
    name, index = _plain(tensor["source"]), tensor["index"]
    if guard.actual in ("0", "1") or guard.expected in ("0", "1"):
        return (
            f"torch compiles sizes 0 and 1 apart, also with dynamic shapes: pad dimension {index} of {name} to at "
            "least 2, or accept one more compilation"
        )
    smaller = guard.actual.isdigit() and guard.expected.isdigit() and int(guard.actual) < int(guard.expected)
    hint = "dynamic=True" if dynamic is None else "dynamic=True instead of --static" if dynamic is False else "padding"
    return (
        f"torch._dynamo.mark_dynamic({name}, {index}) before the first call, or torch.compile(..., {hint}): the first "
        "compilation is then for all sizes; or pad to a few sizes"
        + "; without a smaller last batch: DataLoader(..., drop_last=True)"
        * (index == "0" and smaller)
    )


def _variable(expression: str) -> str:
    """``state['t']`` of ``(0.1 + state['t'])``."""
    found = _NAME.search(expression)
    return expression if found is None else found[0]


def _of_value(source: str, expected: str, dynamic: bool | None, *, still: bool) -> str:
    if source.startswith("___stack"):
        return (
            "what the call at the graph break returned is compiled as a constant: have it return a tensor, or call it "
            "before the compiled function and pass the result as a tensor"
        )
    number = re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", expected)
    source = _variable(source)
    if source.startswith(("G[", "globals()")) or (("self" in source or "." in source) and (still or not number)):
        instead = "keep it in a tensor (a buffer), or pass it as an argument" if number else "pass it as an argument"
        if expected.isdigit() and not source.startswith("G["):
            instead += "; for a module's number, torch._dynamo.config.allow_unspec_int_on_nn_module = True"
        return f"{source} changes between calls and is compiled as a constant: {instead}"
    if number and dynamic is not False and (still or dynamic):
        return (
            f"the code needs the value of {source} while it is traced (a loop, a branch, a setting of an op), so it is "
            "a constant: call with few different values, or make it a tensor that ops compute with"
        )
    if number and dynamic is False:
        return f"{source} is compiled as a constant: leave --static (dynamic=False) out, or pass torch.tensor({source})"
    if number:
        return (
            f"{source} is a constant of the first compilation, and a variable once it has had a second value: "
            f"torch.compile(..., dynamic=True) makes it one from the start; or pass torch.tensor({source})"
        )
    return f"{source} is compiled as a constant: call with few different values, or compile a function for each"


def cuda_graphs(lines: Iterable[str]) -> tuple[CudaGraphEvent, ...]:
    """The events that lines of the logs ``cudagraphs`` of torch tell of, in order; other lines are left out."""
    found = []
    for line in lines:
        named = _ID.match(line)
        id_, text = ("", line) if named is None else (named[1], line[named.end() :])
        if (event := _event(id_, text)) is not None:
            found.append(event)
    return tuple(found)


def _event(id_: str, text: str) -> CudaGraphEvent | None:
    for what, pattern in _EVENTS.items():
        if (found := pattern.search(text)) is not None:
            reason = f"{found[1]} distinct sizes, a graph for each" if what == "warning" else found[1].strip()
            fix = "" if what == "recorded" else _advice("cuda_graph", reason)
            return CudaGraphEvent(what=what, id=id_, reason=reason, fix=fix)
    return None
