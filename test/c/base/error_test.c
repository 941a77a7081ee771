#include "core/base/error.h"

#include <string.h>

#include "check.h"

static void sets_status_and_message(void) {
  xt_error error;
  CHECK(xt_error_set(&error, XT_STATUS_io, "disk %d", 7) == XT_STATUS_io);
  CHECK(error.status == XT_STATUS_io && error.offset == -1 && !strcmp(error.message, "disk 7"));
  CHECK(xt_error_at(&error, XT_STATUS_corrupt, 12, "x") == XT_STATUS_corrupt && error.offset == 12);
}

static void cuts_long_messages(void) {
  xt_error error;
  char longer[3 * XT_ERROR_TEXT];
  memset(longer, 'a', sizeof longer - 1);
  longer[sizeof longer - 1] = 0;
  xt_error_set(&error, XT_STATUS_limit, "%s", longer);
  CHECK(strlen(error.message) == XT_ERROR_TEXT - 1);
}

static void names_statuses(void) {
  CHECK(!strcmp(xt_status_name(XT_STATUS_file_changed), "file_changed"));
  CHECK(!strcmp(xt_status_name((xt_status)999), "unknown"));
}

int main(void) { return RUN_TESTS("error", sets_status_and_message, cuts_long_messages, names_statuses); }
