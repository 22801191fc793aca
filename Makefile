PYTHON ?= python3
BIN := .venv/bin

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --constraint constraints.txt --editable '.[torch,book,test]'
	touch $@
