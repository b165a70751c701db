# make build   target/release/libsmcr.so and target/release/smcrctl
# make test    arrows, protocol, command line, every case natively and under the library, programs, and a few cases of the lab
# make test-programs, test-hostile    the longer ones
# make flip    the suites with connections that move between memory and TCP at random bytes, FLIP bytes apart on average (SEED repeats it)
# make soak    streams, redis and nginx with ends that die, drains, switches and faults inside, with checksums, for SECS seconds (SEED repeats it)
# make faults  faults inside the library, ROUNDS times for each kind and death at each step
# make kills   ends of streams, redis and nginx that die, ROUNDS times for each way of waiting: some minutes for 100
# make churn   10,000 connections that open and close for SECS seconds, natively and under the library
# make memcheck    cases and programs under valgrind, with the library at both ends
# make static  formatting, clippy, the fuzzers compiled, and cargo-deny, which has to be installed; make reproducible   libsmcr.so twice, and compared
# make conformance   programs and test suites of others, natively and under the library: docs/compatibility.md (half an hour)
# make lab     two guests with soft RoCE: kernel SMC-R and libsmcr in every pair (CASES='-k WORDS')
# make demo    redis over TCP and over smcr, both rates, and the proof
# make bench   the table of design goals, TCP and smcr in turn; writes docs/performance.md and docs/plots (BENCH=options of run.sh)
# make install library, smcrctl, units, man pages, completions below PREFIX (/usr/local), in DESTDIR; uninstall removes them
# make deb     target/smcr_VERSION_ARCH.deb; test-deb installs, uses and purges it in a copy of the system
# make deps    what these need from the distribution; each installs its own anyhow

export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/sbin:/sbin
CARGO ?= cargo
# Mean number of bytes between two flips.
FLIP ?= 65536
# Length of the long runs in seconds.
SECS ?= 600
# Deaths for each pair of ends.
ROUNDS ?= 100

.PHONY: build test stalls soak kills faults churn static reproducible memcheck flip test-programs test-hostile conformance lab demo bench install uninstall deb test-deb deps clean

build:
	@tests/deps.sh build
	$(CARGO) build --release -p smcr-preload -p smcr-admin

# What an automatic check runs. The longer ones have targets of their own: flip, test-programs, test-hostile.
test: build
	@tests/deps.sh test
	@CARGO="$(CARGO)" tests/suites.sh arrows units twice bulk strict programs_streams programs_redis programs_nginx programs_defaults kills faults memcheck hostile_random hostile_wakes hostile_closes hostile_relatives hostile_forgers hostile_versions idle harmless limits control reasons models forks handovers conformance lab

# Programs that nobody here wrote: redis, nginx, iperf3, memcached, netcat, socat, Python; idle and harmless.
test-programs: build
	@tests/deps.sh test
	@CARGO="$(CARGO)" tests/suites.sh programs_redis programs_nginx programs_streams programs_defaults kills_programs idle harmless

# Hostile peers, forgers, other versions, the control page, and the models.
test-hostile: build
	@tests/deps.sh test
	$(CARGO) test -p smcr-tests --no-fail-fast --test forks --test hostile --test hostile_loops --test hostile_wakes --test hostile_closes --test hostile_relatives --test hostile_forgers --test hostile_versions --test control
	$(CARGO) test -p smcr-model

# Each suite with programs on one host. tests/suites.sh prints the seed, and says which it leaves out and why.
flip: build
	@tests/deps.sh test
	@SMCR_FLIP=$(FLIP),$(or $(SEED),$(shell date +%s)) CARGO="$(CARGO)" tests/suites.sh twice strict bulk programs_streams \
	    programs_redis programs_nginx programs_defaults kills kills_programs faults memcheck idle harmless limits control reasons models forks handovers \
	    hostile hostile_loops hostile_wakes hostile_closes hostile_relatives hostile_forgers hostile_versions conformance lab

# Cases and relatives while all processors are taken away now and then; as root. A test that says it is slow may be so there.
stalls: build
	@tests/deps.sh test
	@CARGO="$(CARGO)" tests/stalls.py tests/suites.sh twice forks handovers

# The log is in target/soak.log. As root in a PID namespace of its own, where its drains find no processes but its own.
soak: build
	@tests/deps.sh test
	$(if $(filter 0,$(shell id -u)),unshare --pid --fork --mount-proc --kill-child) env TMPDIR=/dev/shm SMCR_SOAK_SECS=$(SECS) $(if $(SEED),SMCR_TEST_SEED=$(SEED)) $(CARGO) test -p smcr-tests --test soak -- --nocapture 2>&1 | tee target/soak.log; \
	    tail -8 target/soak.log | grep -q 'test result: ok'

# The logs are in target/kills.log and target/kills_programs.log.
kills: build
	@tests/deps.sh test
	@for t in kills kills_programs; do \
	    TMPDIR=/dev/shm SMCR_KILL_ROUNDS=$(ROUNDS) $(if $(SEED),SMCR_TEST_SEED=$(SEED)) \
	        $(CARGO) test -p smcr-tests --test $$t -- --nocapture >target/$$t.log 2>&1 || { tail -40 target/$$t.log; exit 1; }; \
	    grep -E 'times,|deaths|test result' target/$$t.log; \
	done

# The log is in target/faults.log.
faults: build
	@tests/deps.sh test
	@TMPDIR=/dev/shm SMCR_FAULT_ROUNDS=$(ROUNDS) $(if $(SEED),SMCR_TEST_SEED=$(SEED)) $(CARGO) test -p smcr-tests --test faults -- --nocapture \
	    >target/faults.log 2>&1 || { tail -40 target/faults.log; exit 1; }
	@grep -E 'ends died|bytes with faults|test result' target/faults.log

churn: build
	SMCR_CHURN_SECS=$(SECS) $(CARGO) test -p smcr-tests --test limits -- --nocapture thousands_come_and_go

# cargo install cargo-deny; it fetches the advisories. Without it this fails: what is said to be checked was not.
static:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) check --manifest-path fuzz/Cargo.toml
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny --all-features check; \
	    else echo 'NOT CHECKED: licences, sources and advisories. cargo-deny is missing: cargo install --locked cargo-deny' >&2; exit 1; fi

# Part of `make test`.
memcheck: build
	@tests/deps.sh test
	$(CARGO) test -p smcr-tests --test memcheck

reproducible:
	@CARGO="$(CARGO)" tests/reproducible.sh

# Programs and suites of others; the scoreboard is docs/compatibility.md.
conformance: build
	@tests/deps.sh conformance
	@/usr/bin/python3 tests/conformance/run.py --write docs/compatibility.md

# Between hosts, in emulated guests; installs QEMU and fetches a kernel the first time.
lab: build
	@tests/lab/run.py $(CASES)

demo: build
	@tests/deps.sh demo
	@tests/demo.sh

bench: build
	@tests/bench/run.sh --markdown docs/performance.md --plots docs/plots $(BENCH)

# What `make build` has built, below PREFIX (/usr/local), in DESTDIR; LIBDIR=PREFIX/lib. Builds nothing: it is said by root.
install:
	@admin/packaging/install.sh install

uninstall:
	@admin/packaging/install.sh uninstall

deb: build
	@admin/packaging/deb.sh

test-deb: build
	@admin/packaging/test.sh "$$(admin/packaging/deb.sh)"

deps:
	@tests/deps.sh all

clean:
	$(CARGO) clean
