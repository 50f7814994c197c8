"""Executed in the namespace of another script: a file's name is executed in turn, ``--name=value`` sets a global."""

import sys
from ast import literal_eval

for arg in sys.argv[1:]:
    if "=" not in arg:
        assert not arg.startswith("--"), arg
        print(f"Overriding config with {arg}")
        exec(open(arg).read())
    else:
        assert arg.startswith("--")
        key, val = arg[2:].split("=")
        if key not in globals():
            raise ValueError(f"Unknown config key: {key}")
        try:
            attempt = literal_eval(val)
        except (SyntaxError, ValueError):
            attempt = val
        assert type(attempt) is type(globals()[key])
        print(f"Overriding: {key} = {attempt}")
        globals()[key] = attempt
