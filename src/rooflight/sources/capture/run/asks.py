"""Whether the user's own code asks for a GPU where there is none: what it does depends on the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import torch

from rooflight.sources.capture.own_code import is_users

_TORCH: Final = str(Path(torch.__file__).parent)
_QUESTIONS: Final[tuple[tuple[Any, tuple[str, ...]], ...]] = (
    (torch.cuda, ("is_available", "device_count", "_lazy_init")),
    (torch.accelerator, ("is_available", "device_count", "current_accelerator")),
)


class AsksForGpuError(BaseException):
    """The user's own code asked for a GPU: no error of its own, so it handles none."""


@contextmanager
def asking_for_gpu() -> Iterator[None]:
    """Raise AsksForGpuError where the user's own code asks torch whether there is a GPU, or puts something on one,
    and at the end where it went on all the same. Questions of libraries get torch's answers.
    """
    asked = False

    def watched(answer: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(answer)
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal asked
            frame = sys._getframe(1)
            while answer.__name__ == "_lazy_init" and frame.f_code.co_filename.startswith(_TORCH) and frame.f_back:
                frame = frame.f_back
            if is_users(frame.f_code.co_filename):
                asked = True
                raise AsksForGpuError
            return answer(*args, **kwargs)

        return run

    with ExitStack() as stack:
        for owner, names in _QUESTIONS:
            for name in names:
                answer = getattr(owner, name)
                stack.callback(partial(setattr, owner, name, answer))
                setattr(owner, name, watched(answer))
        yield
    if asked:
        raise AsksForGpuError
