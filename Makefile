# Errand's tasks. Building and running need only Go, make and git; `make test`
# also uses PostgreSQL, Chromium and Node, which it installs from the distribution
# when it may, and packages from npm.
.POSIX:

VERSION_PACKAGE = github.com/errandhq/errand/internal/buildinfo
VERSION_COMMAND = git describe --tags --always --dirty 2>/dev/null || echo devel

# Installed below .cache by the version in their name, so that a new version is
# a new file.
GOLANGCI_LINT = .cache/bin/golangci-lint-v2.15.0
WORKFLOWCHECK = .cache/bin/workflowcheck-v0.6.0
GOVULNCHECK = .cache/bin/govulncheck-v1.9.0

help: ## list the tasks
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

# No -trimpath: it would make the compiled Temporal server of `go test` and of
# the linter useless here, and cost its eight minutes twice.
build: ## compile bin/errand and bin/errandd
	@tools/check-go
	@tools/announce-build
	@mkdir -p bin
	@version=$$($(VERSION_COMMAND)) && \
	go build -ldflags "-s -w -X $(VERSION_PACKAGE).version=$$version" -o bin/ ./cmd/errand ./cmd/errandd && \
	echo "built bin/errand and bin/errandd, version $$version"

# Make's own variables must not reach the programs of steps, some of which call make.
run: build ## build, then run the server with this machine as its worker; ARGS="..." are its flags
	@exec env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u MAKEOVERRIDES -u ARGS bin/errandd $(ARGS)

test: postgresql chromium mcpclient build ## run all tests, with a real PostgreSQL, a real Temporal and a real browser
	@ERRAND_TEST_BIN_DIR="$$(pwd)/bin" go run ./tools/runtests

# The long forms take minutes each. The 100 runs that are disturbed by random kills spend most of their time waiting, so
# more of them go side by side.
chaos: postgresql chromium mcpclient build ## run the acceptance tests in their long forms: gigabytes of output, long outages, many random kills
	@ERRAND_TEST_BIN_DIR="$$(pwd)/bin" ERRAND_TEST_LONG=1 go test -count=1 -timeout=60m -skip '^TestRandomKills$$' ./acceptance
	@ERRAND_TEST_BIN_DIR="$$(pwd)/bin" ERRAND_TEST_LONG=1 go test -count=1 -timeout=60m -parallel 10 -run '^TestRandomKills$$' ./acceptance

postgresql: ## install PostgreSQL for the tests, where it is missing and allowed
	@tools/check-go
	@go run ./tools/ensure-postgresql

chromium: ## install Chromium for the tests, where a browser is missing and allowed
	@tools/ensure-chromium

mcpclient: ## install the TypeScript SDK for MCP for the tests, in .cache
	@tools/ensure-mcpclient

lint: $(GOLANGCI_LINT) $(WORKFLOWCHECK) ## check formatting, style, import rules and workflow determinism
	$(GOLANGCI_LINT) fmt --diff
	$(GOLANGCI_LINT) run
	$(WORKFLOWCHECK) -show-pos ./workflows/... ./worker/...
	GOOS=darwin go vet ./internal/process ./activities/machine ./internal/lockfile
	GOOS=windows go vet ./internal/process ./activities/machine ./internal/lockfile

vulncheck: $(GOVULNCHECK) ## look for known vulnerabilities in what the programs call
	@tools/vulncheck $(GOVULNCHECK) ./cmd/...

fmt: $(GOLANGCI_LINT) ## format the Go files
	$(GOLANGCI_LINT) fmt

# BENCH is which of them to run, such as Runs/sequential, List, Start or Memory.
BENCH = .

bench: build ## measure the built programs beside bare Temporal; BENCH=Runs/single runs a part
	@mkdir -p .cache
	@ERRAND_TEST_BIN_DIR="$$(pwd)/bin" go test -count=1 -timeout=60m -run '^$$' -bench '$(BENCH)' -benchtime 1x ./bench \
		-results "$$(pwd)/.cache/bench.json"

clean: ## remove what these tasks made
	rm -rf bin .cache

$(GOLANGCI_LINT):
	tools/install-tool $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(WORKFLOWCHECK):
	tools/install-tool $@ go.temporal.io/sdk/contrib/tools/workflowcheck

$(GOVULNCHECK):
	tools/install-tool $@ golang.org/x/vuln/cmd/govulncheck

.PHONY: help build run test chaos postgresql chromium mcpclient lint vulncheck fmt bench clean
