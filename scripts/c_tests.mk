# Builds c_src/core, c_src/plain and their tests into DIR. Called by scripts/c_tests.sh.
# DIR, COMPILE, LIBS and TESTS are given on the command line.
CORE := $(wildcard c_src/core/*/*.c c_src/plain/*.c)
OBJECTS := $(CORE:c_src/%.c=$(DIR)/objects/%.o)
PROGRAMS := $(TESTS:test/c/%.c=$(DIR)/%)
, := ,
# Tests that include failing.h or faults.h replace the functions that the header wraps. A wrapper is written out, or
# defined by FAULTY(name, …).
WRAPPED = $(shell sed -nE 's/.*(__wrap_|FAULTY.)([a-z_]+).*/\2/p' $(addprefix test/c/,$(1)) /dev/null | sort -u)
WRAPS = $(addprefix -Wl$(,)--wrap=,$(call WRAPPED,$(shell grep -ohE '(failing|faults)\.h' $(1))))

all: $(PROGRAMS)
$(DIR)/core.a: $(OBJECTS)
	@rm -f $@
	@$(AR) rcs $@ $^
$(DIR)/objects/%.o: c_src/%.c $(DIR)/flags
	@mkdir -p $(@D)
	@$(COMPILE) -MMD -MP -c $< -o $@
$(DIR)/%_test: test/c/%_test.c $(OBJECTS) $(wildcard test/c/*.h)
	@mkdir -p $(@D)
	@$(COMPILE) $(call WRAPS,$<) $< $(OBJECTS) $(LIBS) -lm -o $@
-include $(OBJECTS:.o=.d)
.SECONDARY: $(OBJECTS)
