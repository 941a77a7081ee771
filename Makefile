# The build of ExTorch. `make` builds the NIF; elixir_make calls the same targets for Hex users.
#
#   make            build/priv/extorch.so and build/priv/extorch_torch.so
#   make demo       a short tour                 make test     the tests
#   make extorch    the program ./extorch        make shell    iex with ExTorch
#   make docs       the documentation in doc/, with ExDoc from Hex or the command ex_doc
#   make check      formatting, layers, warnings, static analysis, Dialyzer, sanitizers, a short fuzz run
#   make coverage   the lines of core that the C tests reach, and the error returns that they do not
#   make cross      core and nif compiled for other systems, and the C tests of core for 64-bit ARM in an emulator
#   make matrix     the tests on Debian bookworm, trixie and sid, and without LibTorch; MATRIX_PYPI=1 adds PyPI's torch, a CUDA build
#   make instructions   instructions for each of 20,000 tensors, compared with bench/instructions.txt; RECORD=1 writes it
#   make image      the Dockerfile of guides/deployment.md, without Docker
#   make setup-bench   installs the peers that make bench BENCH=peers compares with
#   make bench      every script of bench/, or BENCH="open load"
#   make fuzz       readers and writers under libFuzzer, a minute each
#   make cluster    three nodes load one checkpoint, one of them is killed halfway
#   make fire       damaged input, faults and kills: a table of what was survived, in about ten minutes
#   make format     mix format and clang-format  make clean    remove what was built
#   make help       print this text
#
# Honored: CC CXX CFLAGS CXXFLAGS LDFLAGS CROSSCOMPILE ERTS_INCLUDE_DIR MIX_APP_PATH LIBTORCH_DIR EXTORCH_PYTHON
#          EXTORCH_NX_PATH (compiled Nx applications, for a machine without Hex)
#          LIBTORCH_VERSION LIBTORCH_TARGET EXTORCH_LIBTORCH_URL EXTORCH_LIBTORCH_SHA256 EXTORCH_FETCH (scripts/libtorch.sh)
#          EXTORCH_CACHE (directory for downloads, default ~/.cache/extorch)
#          EXTORCH_BUNDLE=1 (scripts/bundle.sh; config :extorch, bundle_libtorch: true sets it)
#          EXTORCH_TORCH=0 (without LibTorch: tensors are memory, and there are no operators)
#          SAN=asan (AddressSanitizer and UBSan), WERROR=1, V=1 (show commands)

.DEFAULT_GOAL := all
SHELL := /bin/bash
Q := $(if $(V),,@)
WITHOUT_TORCH := $(filter 0,$(EXTORCH_TORCH))

# elixir_make sets MIX_APP_PATH; a plain `make` builds in the checkout. There is no priv/ in it: Mix would link that into
# the build directories of all projects that have this one as a path dependency.
PRIV := $(if $(MIX_APP_PATH),$(MIX_APP_PATH)/priv,$(CURDIR)/build/priv)
BUILD := $(if $(MIX_APP_PATH),$(MIX_APP_PATH)/obj,$(CURDIR)/build)$(if $(SAN),/$(SAN))
CORE := $(sort $(wildcard c_src/core/*/*.c))
NIFS := $(sort $(wildcard c_src/plain/*.c c_src/nif/*.c))
SHIM := $(sort $(wildcard c_src/torch/*.cpp)) $(addprefix c_src/core/base/,dtype.c error.c printable.c suggest.c utf8.c)

, := ,
SANITIZE := $(if $(SAN),-fsanitize=address$(,)undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g)
WARN := -Wall -Wextra $(if $(WERROR),-Werror)
OPT := -O2 -fPIC -fvisibility=hidden -pthread
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE -Ic_src $(OPT) $(WARN) $(SANITIZE) $(DEFLATE_INCLUDE) $(CFLAGS)
# core reads untrusted numbers: no implicit conversion, no cast that drops const.
CORE_WARN := -Wshadow -Wconversion -Wcast-qual
ALL_CXXFLAGS = -std=$(TORCH_STD) -Ic_src $(OPT) $(WARN) $(SANITIZE) -D_GLIBCXX_USE_CXX11_ABI=$(TORCH_ABI) \
  -DXT_TORCH_VERSION=$(TORCH_NUMBER) '-DTORCH_VERSION_TEXT="$(TORCH_VERSION)"' $(TORCH_INCLUDES) $(CXXFLAGS)

# ---- The machine: inspected only for targets that build ----

ifneq ($(filter-out help demo extorch shell docs cluster test check coverage cross fuzz fire matrix image bench instructions clean setup-% format,$(or $(MAKECMDGOALS),all)),)
# As many jobs as processors, unless -j or MAKEFLAGS gives a number.
ifeq ($(findstring -j,$(shell echo "$$MAKEFLAGS")),)
MAKEFLAGS += -j$(shell getconf _NPROCESSORS_ONLN)
endif
# The compiler's target selects the flags of the linker. Libraries are called .so on macOS too: Erlang expects that.
TARGET := $(shell $(CROSSCOMPILE)$(CC) -dumpmachine 2>/dev/null)
ifneq ($(findstring darwin,$(TARGET))$(findstring macos,$(TARGET)),)
SHARED := -dynamiclib -Wl,-undefined,dynamic_lookup
LINK := $(SHARED) -Wl,-rpath,@loader_path/lib
# Homebrew's libdeflate is not in the compiler's default directories, and has no relative name to be found by.
DEFLATE_DIR := $(firstword $(wildcard /opt/homebrew/opt/libdeflate /usr/local/opt/libdeflate))
DEFLATE_INCLUDE := $(if $(DEFLATE_DIR),-isystem $(DEFLATE_DIR)/include)
DEFLATE := $(or $(wildcard $(DEFLATE_DIR)/lib/libdeflate.a),-ldeflate)
else
SHARED := -shared
# nodelete: the libraries have threads and an exit handler, which outlive the module. disable-new-dtags: the libraries in
# priv/lib (scripts/bundle.sh) also find each other there.
LINK := $(SHARED) -Wl,-z,nodelete -Wl,-z,relro,-z,now -Wl,--disable-new-dtags '-Wl,-rpath,$$ORIGIN/lib'
DEFLATE := -ldeflate
endif
ERTS_INCLUDE_DIR ?= $(shell erl -noshell -eval 'io:format("~ts/usr/include", [code:root_dir()]), halt().' 2>/dev/null)
# The first build says what it needs, before it downloads LibTorch.
ifeq ($(wildcard $(PRIV)/extorch.so),)
ifneq ($(shell EXTORCH_TORCH='$(EXTORCH_TORCH)' ERTS_INCLUDE_DIR='$(ERTS_INCLUDE_DIR)' CC='$(CROSSCOMPILE)$(CC)' CXX='$(CROSSCOMPILE)$(CXX)' \
  CFLAGS='$(CFLAGS) $(DEFLATE_INCLUDE)' scripts/setup.sh compile >&2 || echo missing),)
$(error ExTorch cannot be built)
endif
endif
ifeq ($(WITHOUT_TORCH),)
# Older makes do not give variables of the command line to $(shell).
TORCH_ENV := $(foreach v,LIBTORCH_DIR LIBTORCH_VERSION LIBTORCH_TARGET TORCHX_DIR EXTORCH_PYTHON EXTORCH_CACHE EXTORCH_FETCH \
  EXTORCH_LIBTORCH_URL EXTORCH_LIBTORCH_SHA256,$(if $($v),$v='$($v)'))
TORCH_FOUND := $(shell mkdir -p $(BUILD) && $(TORCH_ENV) scripts/libtorch.sh 3>&2 >$(BUILD)/libtorch.mk.new 2>$(BUILD)/libtorch.log && \
  { cmp -s $(BUILD)/libtorch.mk.new $(BUILD)/libtorch.mk || cp $(BUILD)/libtorch.mk.new $(BUILD)/libtorch.mk; } && echo yes)
ifneq ($(TORCH_FOUND),yes)
$(shell cat $(BUILD)/libtorch.log >&2)
$(error ExTorch was not built: LibTorch is missing. EXTORCH_TORCH=0 builds ExTorch without it)
endif
include $(BUILD)/libtorch.mk
TORCH_NUMBER := $(shell echo $(TORCH_VERSION) | awk -F. '{print $$1 * 100 + $$2}')
# -isystem suppresses warnings in LibTorch's headers. It must not be used for the compiler's default directories.
TORCH_INCLUDES := $(if $(filter /usr/include,$(TORCH_INCLUDE)),,-isystem $(TORCH_INCLUDE)) \
  -isystem $(TORCH_INCLUDE)/torch/csrc/api/include
TORCH_LIBS := -L$(TORCH_LIB) $(TORCH_RPATH:%='-Wl,-rpath,%') -ltorch_cpu -lc10 \
  $(if $(filter yes,$(TORCH_CUDA)),-Wl$(,)--no-as-needed -ltorch_cuda -lc10_cuda -Wl$(,)--as-needed)
endif
endif

# ---- The libraries ----

NIF_OBJECTS := $(CORE:c_src/%.c=$(BUILD)/%.o) $(NIFS:c_src/%.c=$(BUILD)/%.o)
SHIM_OBJECTS := $(patsubst c_src/%,$(BUILD)/%.o,$(basename $(SHIM)))

.PHONY: all unbundle example pickle_load simulated_device help demo extorch shell docs cluster test check coverage cross fuzz fire matrix image bench instructions clean format
BUNDLE := $(if $(filter-out 0,$(EXTORCH_BUNDLE)),$(PRIV)/lib,unbundle)
LIBRARIES := $(PRIV)/extorch.so $(if $(WITHOUT_TORCH),,$(PRIV)/extorch_torch.so)
all: $(LIBRARIES) $(BUNDLE)
	@$(if $(WITHOUT_TORCH),rm -f $(PRIV)/extorch_torch.so,:)

# The libraries that a release has to bring along. Mix copies priv into releases.
$(PRIV)/lib: $(LIBRARIES)
	@TORCH_LIB='$(TORCH_LIB)' TORCH_CUDA=$(TORCH_CUDA) scripts/bundle.sh $@ $^

unbundle:
	@rm -rf $(PRIV)/lib

# Writes a text to the target if it is another one. There is no pipe: under the VM, SIGPIPE is ignored, and echo complains.
write_if_new = printf '%s\n' '$(subst ','\'',$1)' >$@.new; cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# Records from which objects and how the libraries were linked, so that another variant (SAN=asan) links them again.
VARIANT = $(BUILD) $(LINK) $(LDFLAGS) $(if $(WITHOUT_TORCH),without LibTorch)
$(PRIV)/.variant: always
	@mkdir -p $(@D)
	@$(call write_if_new,$(VARIANT))

$(PRIV)/extorch.so: $(NIF_OBJECTS) $(PRIV)/.variant
	@echo " LD $(notdir $@)"
	@mkdir -p $(@D)
	$(Q)$(CROSSCOMPILE)$(CC) $(LINK) $(SANITIZE) -pthread $(filter %.o,$^) $(DEFLATE) -ldl -lm $(LDFLAGS) -o $@

$(PRIV)/extorch_torch.so: $(SHIM_OBJECTS) $(PRIV)/.variant
	@echo " LD $(notdir $@) (LibTorch $(TORCH_VERSION))"
	@mkdir -p $(@D)
	$(Q)$(CROSSCOMPILE)$(CXX) $(LINK) $(SANITIZE) $(filter %.o,$^) $(TORCH_LIBS) -ldl $(LDFLAGS) -o $@

# An object also depends on its flags, which are kept in a file that changes only when they do.
$(BUILD)/%.o: c_src/%.c $(BUILD)/c.flags
	@echo " CC $(notdir $<)"
	@mkdir -p $(@D)
	$(Q)$(CROSSCOMPILE)$(CC) $(ALL_CFLAGS) $(if $(filter c_src/core/%,$<),$(CORE_WARN)) -isystem $(ERTS_INCLUDE_DIR) -MMD -MP -c $< -o $@

$(BUILD)/%.o: c_src/%.cpp $(BUILD)/cxx.flags
	@echo "CXX $(notdir $<)"
	@mkdir -p $(@D)
	$(Q)$(CROSSCOMPILE)$(CXX) $(ALL_CXXFLAGS) -MMD -MP -c $< -o $@

# The NIF compares the LibTorch that was linked with those that other libraries load.
TORCH_DEFINES = $(if $(WITHOUT_TORCH),,'-DXT_TORCH_VERSION_TEXT="$(TORCH_VERSION)"' \
  '-DXT_TORCH_LIBRARY="$(realpath $(firstword $(wildcard $(TORCH_LIB)/libtorch_cpu.so $(TORCH_LIB)/libtorch_cpu.dylib)))"')
$(BUILD)/nif/libtorch.o: ALL_CFLAGS += $(TORCH_DEFINES)
$(BUILD)/nif/libtorch.o: $(BUILD)/torch.flags

# A second NIF library, for the tests.
example: $(BUILD)/example_nif.so
$(BUILD)/example_nif.so: test/support/example_nif.c c_src/include/extorch.h $(BUILD)/c.flags
	@echo " CC $(notdir $@)"
	$(Q)$(CROSSCOMPILE)$(CC) $(ALL_CFLAGS) -isystem $(ERTS_INCLUDE_DIR) $(SHARED) $< $(LDFLAGS) -o $@

# A program that reads pickles with LibTorch, for the tests.
pickle_load: $(BUILD)/pickle_load
$(BUILD)/pickle_load: test/support/pickle_load.cpp $(BUILD)/cxx.flags
	@echo "CXX $(notdir $@)"
	$(Q)$(CROSSCOMPILE)$(CXX) $(ALL_CXXFLAGS) -U_FORTIFY_SOURCE -O0 $< -L$(TORCH_LIB) -Wl,-rpath,$(TORCH_LIB) \
	  -ltorch_cpu -lc10 -Wl,--allow-shlib-undefined $(LDFLAGS) -o $@

# A backend of LibTorch with a simulated device, for the tests. Its memory is mapped in a way that only Linux can.
simulated_device: $(BUILD)/simulated_device.so
$(BUILD)/simulated_device.so: test/support/simulated_device.cpp $(BUILD)/cxx.flags
	@echo "CXX $(notdir $@)"
	$(Q)$(CROSSCOMPILE)$(CXX) $(ALL_CXXFLAGS) $(LINK) $< -L$(TORCH_LIB) -Wl,-rpath,$(TORCH_LIB) -ltorch_cpu -lc10 \
	  $(LDFLAGS) -o $@

FLAGS_c = $(CROSSCOMPILE)$(CC) $(ALL_CFLAGS) $(CORE_WARN) $(ERTS_INCLUDE_DIR) $(LDFLAGS)
FLAGS_torch = $(TORCH_DEFINES)
FLAGS_cxx = $(CROSSCOMPILE)$(CXX) $(ALL_CXXFLAGS) $(TORCH_LIBS)
$(BUILD)/%.flags: always
	@mkdir -p $(@D)
	@$(call write_if_new,$(FLAGS_$*))
.PHONY: always
.PRECIOUS: $(BUILD)/%.flags

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# ---- Jobs ----

# Without Hex, mix.exs has no dependencies from Hex, and make builds the NIF before mix runs.
HEX = $(if $(EXTORCH_HEX),$(EXTORCH_HEX),$(shell ls -d $${MIX_HOME:-$$HOME/.mix}/archives/hex-* >/dev/null 2>&1 && mix deps >/dev/null 2>&1 && [ -d deps/elixir_make ] && echo 1 || echo 0))
NX_LIBS := $(if $(EXTORCH_NX_PATH),ERL_LIBS=$(EXTORCH_NX_PATH))
MIX = EXTORCH_HEX=$(HEX) $(NX_LIBS) mix
WARNINGS_AS_ERRORS = $(if $(WERROR),--warnings-as-errors)

# A static pattern rule: make does not search implicit rules for phony targets.
SETUPS := setup-build setup-test setup-check setup-coverage setup-cross setup-fuzz setup-matrix
.PHONY: $(SETUPS)
$(SETUPS): setup-%:
	@scripts/setup.sh $*

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

demo: setup-build
	@$(MAKE) --no-print-directory all
	@$(MIX) run --no-deps-check scripts/demo.exs

extorch: setup-build
	@$(MAKE) --no-print-directory all
	@$(MIX) do compile --no-deps-check, escript.build --no-deps-check

shell: setup-build
	@$(MAKE) --no-print-directory all
	@EXTORCH_HEX=$(HEX) $(NX_LIBS) iex -S mix run --no-deps-check

docs: setup-build
	@$(MAKE) --no-print-directory all
	@$(MIX) compile --no-deps-check
	@if [ "$(HEX)" = 1 ]; then mix docs; elif command -v ex_doc >/dev/null; then \
	  $(MIX) run --no-deps-check --no-start scripts/docs_config.exs $(BUILD)/docs.exs && \
	  ex_doc ExTorch "$$(sed -n 's/^  @version "\(.*\)"/\1/p' mix.exs)" _build/dev/lib/extorch/ebin -c $(BUILD)/docs.exs -o doc; \
	else echo "ExDoc was not found: run mix deps.get, or install the command ex_doc"; exit 1; fi

cluster: setup-build
	@$(MAKE) --no-print-directory all
	@$(MIX) run --no-deps-check scripts/cluster.exs

test: setup-test
	@$(MAKE) --no-print-directory all example $(if $(WITHOUT_TORCH),,pickle_load simulated_device)
	@scripts/c_tests.sh
	@MIX_ENV=test $(MIX) compile --no-deps-check $(WARNINGS_AS_ERRORS)
	@MIX_ENV=test $(MIX) test --no-deps-check $(TEST)

check: setup-check
	@scripts/check.sh

coverage: setup-coverage
	@scripts/coverage.sh

cross: setup-cross
	@scripts/cross.sh

fuzz: setup-fuzz
	@scripts/fuzz.sh $(FUZZ_SECONDS)

fire: setup-test setup-fuzz
	@EXTORCH_HEX=$(HEX) $(NX_LIBS) scripts/fire.sh $(FORM)

matrix: setup-matrix
	@scripts/matrix.sh $(SUITES)

instructions: setup-check
	@scripts/instructions.sh $(if $(RECORD),record)

image: setup-matrix
	@scripts/image.sh

.PHONY: setup-bench
setup-bench:
	@scripts/setup_bench.sh

bench: setup-test
	@$(MAKE) --no-print-directory all simulated_device
	@for script in $(if $(BENCH),$(BENCH:%=bench/%.exs),$(wildcard bench/*.exs)); do echo "== $$script"; $(MIX) run --no-deps-check $$script || exit 1; done

format:
	@mix format
	@clang-format -i $$(git ls-files '*.[ch]' '*.cpp' '*.hpp')

clean:
	@rm -rf $(if $(MIX_APP_PATH),$(MIX_APP_PATH)/obj,build) $(PRIV)/*.so $(PRIV)/.variant $(PRIV)/lib
