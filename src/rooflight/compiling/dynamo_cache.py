"""Dynamo's cache of compiled frames: an entry is taken out as Dynamo takes out those whose objects were freed."""

from __future__ import annotations

from collections.abc import Set
from typing import Any


def compilation() -> Any:
    """The id of what Dynamo compiles now, which the entry of the cache will have; None outside of Dynamo."""
    from torch._guards import CompileContext

    return CompileContext.current_compile_id()


def drop(compilations: Set[Any]) -> None:
    """Take the entries of these compilations out of Dynamo's cache, so that their frames are compiled once more."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
    from torch._dynamo.convert_frame import input_codes
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    for code in [found for known in input_codes.seen if (found := known()) is not None]:
        for entry in _debug_get_cache_entry_list(code):
            manager = entry.guard_manager
            if entry.compile_id in compilations and not isinstance(manager, DeletedGuardManagerWrapper):
                state = manager.extra_state
                if state is not None:
                    state.invalidate(entry, DeletedGuardManagerWrapper("Rooflight did not compile it"))
