"""The ``rooflight`` command, and ``python -m rooflight`` for launchers that start modules (torchrun, job scripts)."""

import sys
from contextlib import suppress
from pathlib import Path

from rooflight.records.package import uncollected


def main() -> None:
    """Run the command line. A script without options before it begins at once: the libraries that read options take
    longer to import than the rest.
    """
    words = sys.argv[1:]
    launch = None
    if words[:1] == ["run"] and words[1:] and not words[1].startswith("-") and Path(words[1]).is_file():
        with suppress(OSError), uncollected():  # what is wrong, the other way says
            from rooflight.cli.launch import Launch, prepared

            watched, saved = prepared(words[1])
            launch = Launch(target=words[1], arguments=words[2:], watched=watched, saved=saved)
    if launch is not None:
        launch.start()
        return
    from rooflight.cli.main import main as with_options

    with_options()


if __name__ == "__main__":
    main()
