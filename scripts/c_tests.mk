# Builds c_src/core and its tests into DIR. Called by scripts/c_tests.sh.
# DIR, COMPILE, LIBS and TESTS are given on the command line.
CORE := $(wildcard c_src/core/*/*.c)
OBJECTS := $(CORE:c_src/core/%.c=$(DIR)/core/%.o)
PROGRAMS := $(TESTS:test/c/%.c=$(DIR)/%)
, := ,
# Tests that include failing.h replace the allocation functions.
WRAPS := $(addprefix -Wl$(,)--wrap=,$(shell grep -o '__wrap_[a-z]*' test/c/failing.h | sort -u | sed 's/__wrap_//'))

all: $(PROGRAMS)
$(DIR)/core/%.o: c_src/core/%.c $(DIR)/flags
	@mkdir -p $(@D)
	@$(COMPILE) -MMD -MP -c $< -o $@
$(DIR)/%_test: test/c/%_test.c $(OBJECTS) $(wildcard test/c/*.h)
	@mkdir -p $(@D)
	@$(COMPILE) $(if $(shell grep -l '"failing.h"' $<),$(WRAPS)) $< $(OBJECTS) $(LIBS) -lm -o $@
-include $(OBJECTS:.o=.d)
.SECONDARY: $(OBJECTS)
