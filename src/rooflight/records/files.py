"""Files that appear whole or not at all: the one way in which this project writes a file that something else reads.

The content goes to a temporary file in the same folder, which takes the target's place when it is complete: a reader
sees the old file or the new one, never half of one, and an exception or Ctrl-C leaves no temporary file. The content is
flushed to the disk before the exchange (``fsync``), so that a power cut leaves one of the two as well; which of the two
is not promised, since the folder is not flushed.

If the path is a link, the file that it leads to is replaced, and the link stays. A device, a FIFO and any other file
that is not regular, and ``/dev/stdout`` wherever it leads, are written in place: replacing them would break them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import IO

_MOST_LINKS = 40  # as Linux has it
_NAME_KEPT = 100  # characters of a temporary file's name, of the 255 that file systems allow


def write_whole(path: Path, content: str | bytes) -> None:
    """Write ``content``, text in UTF-8, to ``path`` as ``whole_file`` does. Raises OSError if that fails."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def cache_folder() -> Path:
    """Where calibrations and runs are kept: ROOFLIGHT_CACHE, otherwise ``rooflight`` in the user's cache folder.

    Raises FileNotFoundError for a user without a home, as in some containers.
    """
    chosen = os.environ.get("ROOFLIGHT_CACHE")
    if chosen:
        return Path(chosen)
    users = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(users) if users else Path.home() / ".cache") / "rooflight"
    except RuntimeError as error:
        raise FileNotFoundError(f"{error}: set ROOFLIGHT_CACHE to a folder") from None


def write_kept(path: Path, content: str | bytes) -> None:
    """``write_whole`` into a cache, whose folder is made. A pipe or device there is removed: it would wait for one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if not S_ISREG(path.stat().st_mode):
            path.unlink()
    write_whole(path, content)


def write_all(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """Write files into a folder, which is made if it is not there: all of them, or none if one of them fails.

    Raises OSError as ``write_whole`` does.
    """
    before = folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as files:
            for name, content in contents.items():
                file = files.enter_context(whole_file(folder / name))
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()  # a full disk shows now, before a file takes its place
    except BaseException:
        if not before:
            with suppress(OSError):  # somebody else's files are in it
                folder.rmdir()
        raise


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let no other process that asks for the same change a folder between reading and writing, where the file system
    has locks. The folder is made if it is not there.
    """
    with ExitStack() as held:
        with suppress(OSError, ImportError):
            import fcntl  # which Windows lacks

            folder.mkdir(parents=True, exist_ok=True)
            held.callback(os.close, descriptor := os.open(folder, os.O_RDONLY))
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open ``path`` to be written whole: when the block ends, ``path`` has all that it wrote; if it raises, none of it.

    The new content gets the permissions of the file that it replaces; a new file gets those that the umask leaves.
    Raises an OSError that names the file if it cannot be written, and FileNotFoundError if its folder does not exist.
    """
    with naming(path), _whole(path) as file:
        yield file


@contextmanager
def naming(what: Path | str) -> Iterator[None]:
    """Add this name to an OSError that names no file, such as that of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(what)
        raise


@contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    target, special = _target(path)
    if special:
        with _special(target) as file:
            yield file
        return
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent}: make it, or save somewhere else")
    temporary = target.with_name(f".{target.name[:_NAME_KEPT]}.{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "xb") as file:  # noqa: PTH123 - Path.open types it as a reader too
            if target.exists():
                os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _target(path: Path) -> tuple[Path, bool]:
    """The path that a path's links lead to, and whether the file there must be written in place."""
    try:
        if not S_ISREG(path.stat().st_mode):
            return path, True
    except FileNotFoundError:
        pass  # a new file, at the end of a link perhaps
    for _ in range(_MOST_LINKS):
        folder = path.parent.resolve()
        if folder == Path("/dev") or folder.parts[:2] == ("/", "proc"):
            return folder / path.name, True  # /dev/stdout, sent to a file: the shell goes on writing to that file
        if not path.is_symlink():
            break
        path = folder / path.readlink()
    return path, False


def _special(path: Path) -> IO[bytes]:
    """The file, open for writing: a descriptor of this process (``/proc/self/fd/1``) from its current position on,
    anything else opened anew.
    """
    while path.parent == Path("/dev") and path.is_symlink():
        path = path.readlink()
    if path.name.isdigit() and path.parent.resolve() == Path(f"/proc/{os.getpid()}/fd"):
        return os.fdopen(os.dup(int(path.name)), "wb")
    return open(path, "wb")  # noqa: PTH123 - closed by the caller's with
