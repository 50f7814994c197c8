# Two commands do all the set-up: `make demo` and `make test`. They need Python 3.11 or newer, make and gcc.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check lint types imports tests search slow peers site clean

demo: $(STAMP)
	$(BIN)/rooflight analyze gpt2 --step train --seq 128

# mypy fills what the two workers of pytest leave of two cores.
test: $(STAMP)
	$(MAKE) -j2 check tests

check: lint types imports

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports --no-cache

tests: $(STAMP)
	OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Properties try other examples in each run; those of `make tests` are the same each time.
search: $(STAMP)
	ROOFLIGHT_SEARCH=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile $$(grep -rl '@given' tests)

slow: $(STAMP) $(VENV)/timm
	$(BIN)/pytest -m slow

# Apart from the rest, and without what it depends on: its torchvision is compiled for another build of torch.
$(VENV)/timm: $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints/dev.txt --no-deps --target $@ timm torchvision
	touch $@

# The pages with search, in ./site.
site: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

# The tools that benchmarks/accuracy_flops.py compares with, in an environment of their own.
peers: $(STAMP)
	bash benchmarks/peers/install.sh .venv-peers

$(STAMP): pyproject.toml constraints/dev.txt
	$(PYTHON) -c 'import sys; sys.exit("Rooflight needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints/dev.txt --editable '.[torch,hf,dev]'
	touch $@

clean:
	rm -rf $(VENV) .venv-peers site .mypy_cache .ruff_cache .pytest_cache .hypothesis build src/*.egg-info
