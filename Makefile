# make build   target/release/libsmcr.so and target/release/smcrctl
# make test    everything, once as it is and once with connections that flip at random bytes
# make demo    redis over TCP and over smcr, both rates, and the proof
# make bench   the table of design goals, TCP and smcr in turn
# make deps    what these need from the distribution; each installs its own anyhow

export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
CARGO ?= cargo
# Mean number of bytes between two flips, and the seed.
FLIP ?= 65536,1

.PHONY: build test test-flip demo bench deps clean

build:
	@tests/deps.sh build
	$(CARGO) build --release -p smcr-preload -p smcr-admin

# Both runs are made, also if the first fails; the last line is a test runner's.
test: build
	@tests/deps.sh test
	@status=0; \
	$(CARGO) test --workspace --no-fail-fast || status=1; \
	SMCR_FLIP=$(FLIP) $(CARGO) test -p smcr-tests --test twice || status=1; \
	exit $$status

test-flip: build
	@tests/deps.sh test
	SMCR_FLIP=$(FLIP) $(CARGO) test -p smcr-tests --test twice

demo: build
	@tests/deps.sh demo
	@tests/demo.sh

bench: build
	@tests/bench/run.sh

deps:
	@tests/deps.sh all

clean:
	$(CARGO) clean
