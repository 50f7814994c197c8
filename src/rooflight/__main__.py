"""``python -m rooflight``: the same command, for launchers that start modules (torchrun, job scripts)."""

from rooflight.cli.main import main

if __name__ == "__main__":
    main()
