/* usage: index_file_test DIRECTORY */
#include "core/os/atomic_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "core/os/directory.h"

static char directory[4096], path[4200], found[4400];

/* Finds the name with the prefix. Also checks that there is at most one. */
static bool find_name(void *context, const char *name) {
  const char *prefix = context;
  if (strncmp(name, prefix, strlen(prefix))) return true;
  CHECK(!*found);
  snprintf(found, sizeof found, "%s/%s", directory, name);
  return true;
}

static bool find(const char *prefix) {
  xt_error error;
  *found = 0;
  CHECK(xt_directory_list(directory, find_name, (void *)prefix, &error) == XT_STATUS_ok);
  return *found;
}

static bool stop(void *context, const char *name) {
  (void)name;
  return ++*(int *)context < 1;
}

static void an_index_is_kept_until_it_is_claimed(void) {
  xt_atomic_file index, claimed;
  xt_error error;
  bool dead;
  CHECK(xt_atomic_file_open_index(&index, path, &error) == XT_STATUS_ok);
  CHECK(strlen(xt_atomic_file_id(&index)) == 16);
  CHECK(xt_atomic_file_write(&index, "{}", 2, &error) == XT_STATUS_ok);
  CHECK(xt_atomic_file_sync(&index, &error) == XT_STATUS_ok);
  CHECK(find(".extorch-index-") && strstr(found, xt_atomic_file_id(&index)));
  CHECK(xt_atomic_file_claim(&claimed, found, &dead, &error) == XT_STATUS_ok && !dead);
  xt_atomic_file_close(&claimed);
  CHECK(find(".extorch-index-"));
  xt_atomic_file_close(&index);
  xt_atomic_file_close(&index);
  CHECK(find(".extorch-index-"));
  CHECK(xt_atomic_file_claim(&claimed, found, &dead, &error) == XT_STATUS_ok && dead);
  xt_atomic_file_close(&claimed);
  CHECK(find(".extorch-index-"));
  CHECK(xt_atomic_file_claim(&claimed, found, &dead, &error) == XT_STATUS_ok && dead);
  xt_atomic_file_discard(&claimed);
  CHECK(!find(".extorch-index-"));
}

static void an_index_is_committed(void) {
  xt_atomic_file index;
  xt_error error;
  for (int i = 0; i < 2; i++) {
    CHECK(xt_atomic_file_open_index(&index, path, &error) == XT_STATUS_ok);
    CHECK(xt_atomic_file_commit(&index, true, &error) == XT_STATUS_ok);
    xt_atomic_file_close(&index);
    CHECK(!access(path, F_OK) && !find(".extorch-index-"));
  }
}

static void only_temporary_names_are_claimed(void) {
  xt_atomic_file claimed;
  xt_error error;
  bool dead;
  CHECK(xt_atomic_file_claim(&claimed, path, &dead, &error) == XT_STATUS_ok && !dead);
  xt_atomic_file_close(&claimed);
  CHECK(xt_atomic_file_claim(&claimed, "/no/such/.extorch-index-0", &dead, &error) == XT_STATUS_not_found && !dead);
  xt_atomic_file_close(&claimed);
  CHECK(!access(path, F_OK));
}

static void a_directory_is_locked_once(void) {
  xt_error error;
  int first, second, names = 0;
  CHECK(xt_directory_lock(directory, &first, &error) == XT_STATUS_ok && first >= 0);
  CHECK(xt_directory_lock(directory, &second, &error) == XT_STATUS_ok && second == -1);
  xt_directory_unlock(first);
  CHECK(xt_directory_lock(directory, &second, &error) == XT_STATUS_ok && second >= 0);
  CHECK(!xt_directory_shared(second));
  xt_directory_unlock(second);
  CHECK(xt_directory_lock("/no/such", &first, &error) == XT_STATUS_not_found);
  CHECK(xt_directory_lock(path, &first, &error) == XT_STATUS_io);
  CHECK(xt_directory_list(path, find_name, "x", &error) == XT_STATUS_io);
  CHECK(xt_directory_list(directory, stop, &names, &error) == XT_STATUS_ok && names == 1);
  CHECK(xt_directory_host() == xt_directory_host());
}

int main(int argc, char **argv) {
  snprintf(directory, sizeof directory, "%s/index_file_test.XXXXXX", argc > 1 ? argv[1] : "/tmp");
  CHECK(mkdtemp(directory));
  snprintf(path, sizeof path, "%s/model.index.json", directory);
  int status = RUN_TESTS("index_file", an_index_is_kept_until_it_is_claimed, an_index_is_committed,
                         only_temporary_names_are_claimed, a_directory_is_locked_once);
  CHECK(!unlink(path) && !rmdir(directory));
  return status;
}
