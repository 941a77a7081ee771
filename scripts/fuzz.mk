# Builds c_src/core and the fuzz targets into DIR. Called by scripts/fuzz.sh. DIR and TARGETS are given on the command
# line.
CC := clang
, := ,
FLAGS := -std=c11 -D_GNU_SOURCE -Ic_src -Itest/c -O1 -g -Wall -Wextra -Werror -pthread -fno-omit-frame-pointer \
  -fsanitize=address$(,)undefined -fno-sanitize-recover=all
CORE := $(filter-out c_src/core/memory/arena.c c_src/core/memory/slab.c,$(wildcard c_src/core/*/*.c)) \
  test/c/fuzz/exact_arena.c test/c/fuzz/exact_slab.c
OBJECTS := $(CORE:%.c=$(DIR)/objects/%.o)
WRAPS := $(addprefix -Wl$(,)--wrap=,$(shell grep -o '__wrap_[a-z_]*' test/c/fuzz/fuzz.h | sort -u | sed 's/__wrap_//'))

all: $(TARGETS:%=$(DIR)/%)
	@:
$(DIR)/objects/%.o: %.c scripts/fuzz.mk
	@mkdir -p $(@D)
	@$(CC) $(FLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c $< -o $@
# Only core is instrumented for coverage: the targets themselves are not what the fuzzer should explore.
$(DIR)/objects/%.target.o: test/c/fuzz/%.c scripts/fuzz.mk
	@mkdir -p $(@D)
	@$(CC) $(FLAGS) -Wno-unused-function -MMD -MP -c $< -o $@
$(DIR)/%: $(DIR)/objects/%.target.o $(OBJECTS)
	@$(CC) $(FLAGS) -fsanitize=fuzzer $(WRAPS) $^ -ldeflate -lm -o $@
-include $(OBJECTS:.o=.d) $(TARGETS:%=$(DIR)/objects/%.target.d)
.SECONDARY:
