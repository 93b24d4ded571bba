# The two commands of the README, and the tests that CI runs besides. Node 24 and pnpm come from the npm registry; only npm and
# a C++ compiler with CMake are needed.
PNPM ?= npx --yes $(shell sed -n 's/.*"packageManager": *"\(pnpm@[^"+]*\).*/\1/p' package.json)
.PHONY: setup demo test test-full test-counts
setup:
	$(PNPM) install --frozen-lockfile
demo: setup
	$(PNPM) demo
test: setup
	$(PNPM) test
test-full: setup
	$(PNPM) test:full
test-counts: setup
	$(PNPM) test:counts
