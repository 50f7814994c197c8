"""Graph breaks from torch's own texts: reason, line of the user's code, and the rewrite that removes each."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable
from typing import Final

import msgspec

from rooflight.compiling.explain.graph_text import frames
from rooflight.compiling.explain.result import GraphBreak, Place, place_of

_WHOLE: Final = ("Skipping the function and falling back to eager", "skipping the rest of the function")
_AGAIN: Final = "user stack suppressed due to duplicate graph break"
_PACKAGE: Final = re.compile(r"/site-packages/(\w+)/")
_MORE: Final = re.compile(r"https://\S+")
_EXAMPLE: Final = re.compile(r"\(e\.g\. [^)]*\)")
_BUILTIN: Final = re.compile(r"builtin operator (`\w+`)")
_STANDARD: Final = sysconfig.get_path("stdlib")

_REWRITES: Final[tuple[tuple[str, str], ...]] = (
    (
        r"Data-dependent branching|torch\.cond",
        "take both branches and choose: torch.where(condition, a, b), or torch.cond(condition, f, g, (x,)) for "
        "branches that cost; or decide from shapes, which are known while tracing",
    ),
    (
        r"Data-dependent assertion|assert with",
        "torch._assert_async(condition), or check before the compiled function",
    ),
    (
        r"Tensor\.item\(\)|_local_scalar_dense|nb_float|nb_int",
        "keep the value a tensor (x / x.max() needs no .item()); or set "
        "torch._dynamo.config.capture_scalar_outputs = True, which keeps the number in the graph",
    ),
    (
        r"Tensor\.tolist\(\)|Failed to trace list\(\)|tolist",
        "keep the tensor: index, stack or reduce it with torch ops; convert to a list after the compiled function",
    ),
    (
        r"builtin operator `print`|`print`",
        "print after the compiled function, or torch._dynamo.config.reorderable_logging_functions.add(print), which "
        "prints at the end of the graph",
    ),
    (
        r"logging\.Logger",
        "log after the compiled function, or leave it out: "
        "torch._dynamo.config.ignore_logging_functions.add(logging.Logger.debug), and so for other methods",
    ),
    (
        r"builtin `_?warnings\.warn",
        "warn after the compiled function, or guard it with `if not torch.compiler.is_compiling():`",
    ),
    (
        r"torch\.compiler\.disable|torch\._dynamo\.disable|marked as skipped.*disable",
        "remove torch.compiler.disable if the function can be traced; else call it before or after the compiled "
        "function; an op of your own in C++ or Triton goes into the graph as torch.library.custom_op",
    ),
    (r"graph_break\(\)", "remove the call torch._dynamo.graph_break()"),
    (
        r"Dynamic shape operator|Data dependent operator|data-dependent output",
        "use an op whose output size does not depend on values (torch.where with three arguments, a mask times x); or "
        "set torch._dynamo.config.capture_dynamic_output_shape_ops = True",
    ),
    (
        r"Dynamic slicing|unbacked|data-dependent expression|GuardOnDataDependent",
        "take the bound from a shape or an argument; or capture_scalar_outputs = True with torch._check(n <= size)",
    ),
    (
        r"numpy|ndarray",
        "write it with torch ops, or call NumPy before the compiled function; NumPy functions that torch knows are "
        "traced without a break",
    ),
    (r"\btime\.|`time|perf_counter|monotonic", "read the clock before and after the compiled function"),
    (
        r"random",
        "draw with torch (torch.rand, torch.randint), or draw the number outside and pass it as an argument",
    ),
    (
        r"Tensor\.backward\(\)|autograd\.grad",
        "compile the function that computes the loss, and call backward outside of it",
    ),
    (r"requires_grad", "set requires_grad before the compiled function"),
    (
        r"deque",
        "use a list, or a deque without maxlen that is made inside the function",
    ),
    (
        r"generator|Generator",
        "return a list of what it would yield; or loop over the generator inside the compiled function",
    ),
    (
        r"Observed exception|raise|Exception",
        "raise before or after the compiled function; torch.compile does not trace through an exception that leaves it",
    ),
    (
        r"context manager",
        "enter the context outside the compiled function",
    ),
    (r"copy\.deepcopy|deepcopy", "copy outside the compiled function, or x.clone()"),
    (
        r"weakref|id\(\)|call_id|hash|repr\(\)|str\(\)",
        "do not use the identity or the text of an object inside the compiled function",
    ),
    (
        r"RNN, GRU, or LSTM",
        "torch._dynamo.config.allow_rnn = True, or leave the recurrent module outside the compiled function: its "
        "library kernel is one already",
    ),
    (
        r"recompile limit",
        "remove what makes it compile again (see the recompiles)",
    ),
    (
        r"marked as skipped|function implemented in C|not implemented in python|builtin operator|"
        r"Unsupported method call|Unsupported function call|non-function|C/C\+\+|Python builtin|untraceable",
        "move the call before or after the compiled function; or make it a part of the graph with "
        "torch.library.custom_op, or, if its result never changes, torch.compiler.assume_constant_result",
    ),
)
_OTHERWISE: Final = "move the line before or after the compiled function, or wrap it as torch.library.custom_op"


def graph_breaks(texts: Iterable[str]) -> tuple[GraphBreak, ...]:
    """The breaks that texts of ``dynamo_graph_break_reason`` tell of, each line and reason once, in order."""
    found: dict[tuple[str, str, int], GraphBreak] = {}
    for text in texts:
        each = graph_break(text)
        key = (each.reason, each.place.file if each.place else "", each.place.line if each.place else 0)
        if (known := found.get(key)) is not None:
            whole = known.whole_function or each.whole_function
            each = msgspec.structs.replace(known, times=known.times + 1, whole_function=whole)
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
    place = _place(rows, rest.partition("Traceback (most recent call last)")[0])
    package = None if place is None else _PACKAGE.search(place.file)
    library = "" if package is None else f"in {package[1]}: compile the parts before and after it, or, if you can, "
    return GraphBreak(
        reason=reason,
        explanation=explanation,
        hints=hints,
        place=place,
        rewrite=library + rewrite(f"{reason} {_EXAMPLE.sub('', explanation)} {context}"),
        times=1,
        whole_function=any(text in head for text in _WHOLE),
        more="" if more is None else more[0],
    )


def logged_breaks(texts: Iterable[str]) -> tuple[str, ...]:
    """``train.py:12: Data-dependent branching``: the breaks in texts of torch's log ``graph_breaks``, in order."""
    found = graph_breaks(text for text in texts if _AGAIN not in text)
    return tuple(": ".join(filter(None, (place_of(each.place), each.reason))) for each in found)


def rewrite(text: str) -> str:
    """What removes a break, by its reason and explanation."""
    return next((advice for pattern, advice in _REWRITES if re.search(pattern, text)), _OTHERWISE)


def _reason(rows: list[str]) -> str:
    """The first row that says why, past those that say where and what torch was doing."""
    for whole in rows:
        row = whole.partition("Graph Break Reason:")[2].strip() if "Graph Break Reason:" in whole else whole
        if row and not row.startswith(("Graph break in user code", "Encountered graph break", "Failed to handle")):
            return row
    return "torch gives no reason"


def _of_library(file: str) -> bool:
    return "/torch/" in file or (file.startswith(_STANDARD) and "site-packages" not in file)


def _place(rows: list[str], traceback: str) -> Place | None:
    """The innermost line of the traceback that is neither torch's nor Python's; else what the first row says."""
    known = list(frames(traceback))
    if known:
        return next((frame for frame in reversed(known) if not _of_library(frame.file)), known[-1])
    head = re.match(r"Graph break in user code at (.+):(\d+)$", rows[0]) if rows else None
    return None if head is None else Place(file=head[1], line=int(head[2]))
