"""Imports no torch, and ends with 2."""

import json
import sys

print(json.dumps({"torch": "torch" in sys.modules, "words": sys.argv[1:]}))
sys.exit(2)
