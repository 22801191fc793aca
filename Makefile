# Each verb first makes its own environment: .venv, with the versions in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
PAGES ?= book/*.ipynb
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=600

.PHONY: book test fast test-portable mutants check execute tables bench clean

# The book, in _build/html. A warning fails it.
book: $(READY)
	$(BIN)/jupyter-book build . -W --keep-going

# The unit tests, and every notebook against its stored outputs. Notebooks run one after the other:
# two kernels that start at once can be given the same port, and then wait for each other.
test: $(READY)
	$(BIN)/pytest tests --numprocesses=logical --maxprocesses=4 --dist=loadscope
	$(BIN)/pytest book $(NBVAL)

# The unit tests that are not marked slow, in a minute and a half on two cores.
fast: $(READY)
	$(BIN)/pytest tests -m "not slow" --numprocesses=logical --maxprocesses=4 --dist=loadscope

# Does some test fail wherever the code is broken? In under an hour on two cores; what it leaves out
# is said by .venv/bin/python tests/mutants.py --help
mutants: $(READY)
	$(BIN)/python tests/mutants.py

# What could hang on the machine's CPU, once more as if it had another one: the tests of the chain
# and of what decomposes matrices, and the pages that do either.
DECOMPOSES := gd\.(chain|sgd|modes)\(|linalg\.(eigh?|svd|qr)\(
test-portable: $(READY)
	$(BIN)/python tests/another_kernel.py $(BIN)/pytest $(NBVAL) \
	    $(wildcard $(addprefix tests/test_,chain.py chain_is_sgd.py states.py stability.py)) \
	    $$(grep -lE '$(DECOMPOSES)' book/*.ipynb)

# What CI runs.
check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(MAKE) test
	$(MAKE) test-portable
	$(MAKE) book

# Run notebooks again and store their outputs: all, or make execute PAGES=book/page.ipynb
execute: $(READY)
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace \
	    --ExecutePreprocessor.record_timing=False $(PAGES)

# Processes fill the cores, so a process keeps to one thread. No progress bars in outputs.
test fast test-portable mutants execute tables: export OMP_NUM_THREADS := 1
test fast test-portable mutants execute: export TQDM_DISABLE := 1

# Every table in book/data, in under two hours on two cores, or some of the scripts in benchmarks/
# that make them: make tables TABLES=exit_times. Once killed, it goes on where it was.
tables: $(READY)
	$(BIN)/python benchmarks/tables.py $(TABLES)

# Every claim of speed, measured.
bench: $(READY)
	for name in flow chain sgd activations; do $(BIN)/python benchmarks/$$name.py || exit; done

clean:
	rm -rf .venv _build

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check \
	    --constraint constraints.txt --editable '.[torch,book,test]'
	touch $@
