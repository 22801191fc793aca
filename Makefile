# Each verb first makes its own environment: .venv, with the versions in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

# One thread a process: the tests use every core through processes, and outputs stay stable.
export OMP_NUM_THREADS := 1
export TQDM_DISABLE := 1

.PHONY: book test check execute bench clean

book: $(READY)  ## build the book into _build/html
	$(BIN)/jupyter-book build . -W --keep-going

test: $(READY)  ## run the unit tests, and every notebook against its stored outputs
	$(BIN)/pytest --numprocesses=2 --dist=loadscope \
	    --nbval --nbval-current-env --nbval-cell-timeout=120

check: $(READY)  ## what CI runs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(MAKE) test
	$(MAKE) book

execute: $(READY)  ## run every notebook again and store its outputs
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace book/*.ipynb

bench: $(READY)  ## run every benchmark
	for script in benchmarks/*.py; do $(BIN)/python $$script || exit; done

clean:  ## remove the environment and the built book
	rm -rf .venv _build

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt --editable '.[torch,book,test]'
	touch $@
