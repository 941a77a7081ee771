/* Finds the end of pickles: of short ones written here, and of every file given as an argument. */
#include "core/pickle/scan.h"

#include <string.h>

#include "check.h"
#include "core/pickle/unpickle.h"

static xt_pickle_scan_result scan(const void *data, size_t size, xt_pickle_scan_state *state) {
  *state = (xt_pickle_scan_state){0};
  return xt_pickle_scan(data, size, state);
}

/* The end is found in one call, and in calls with one more byte each. Until then the scan never requests more bytes
 * than are missing. */
static void finds_end(const uint8_t *data, size_t size) {
  xt_pickle_scan_state whole, pieces = {0};
  CHECK(scan(data, size, &whole) == XT_SCAN_END);
  for (size_t have = 0; have < whole.at; have++) {
    CHECK(xt_pickle_scan(data, have, &pieces) == XT_SCAN_SHORT);
    CHECK(pieces.at <= have && pieces.wanted > 0 && pieces.at + pieces.wanted <= whole.at);
  }
  CHECK(xt_pickle_scan(data, whole.at, &pieces) == XT_SCAN_END && pieces.at == whole.at);
  CHECK(pieces.payload == whole.payload);
}

#define PICKLE(text) \
  { text, sizeof(text) - 1 }

static void stops_after_the_stop_instruction(void) {
  static const struct {
    const char *data;
    size_t size;
  } pickles[] = {
      PICKLE("."),
      PICKLE("N."),
      PICKLE("\x80\x02]q\x00(K\x01M\x02\x03J\x04\x05\x06\x07"
             "e."),
      PICKLE("X\x02\x00\x00\x00..U\x01.\x8c\x02..."), /* full stops inside strings */
      PICKLE("\x8d\x03\x00\x00\x00\x00\x00\x00\x00...B\x01\x00\x00\x00.C\x01.."),
      PICKLE("\x8a\x02..\x8b\x01\x00\x00\x00.."),
      PICKLE("G........."),
      PICKLE("I42.\nL7.L\nF1.5\nS'a.b'\nVc.d\n."),
      PICKLE("cos.path\njoin.\n(i.a\n.b\np0.\ng0.\nP.id.\n."),
      PICKLE("\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00K.\x94(."),
      PICKLE("q.h.r....j....\x82.\x83..\x84....."),
      PICKLE("(012\x88\x89]}\x8f)ldt\x91\x85\x86\x87"
             "aesu\x90\x93R\x81\x92obQ\x94\x97\x98."),
  };
  for (size_t i = 0; i < COUNT_OF(pickles); i++) {
    const uint8_t *data = (const uint8_t *)pickles[i].data;
    xt_pickle_scan_state state;
    finds_end(data, pickles[i].size);
    CHECK(scan(data, pickles[i].size, &state) == XT_SCAN_END && state.at == pickles[i].size);
    /* Bytes after the end are ignored. */
    uint8_t longer[128];
    memcpy(longer, data, pickles[i].size);
    memset(longer + pickles[i].size, 0xff, sizeof longer - pickles[i].size);
    CHECK(scan(longer, sizeof longer, &state) == XT_SCAN_END && state.at == pickles[i].size);
  }
}

static void knows_every_instruction(void) {
  static const char known[] = "\x80\x95JKM\x8a\x8bGILFSVTUX\x8c\x8d"
                              "BC\x8e\x96"
                              "ciqrhjpgP\x82\x83\x84"
                              "(012N\x88\x89]}\x8f)ldt\x91\x85\x86\x87"
                              "aesu\x90\x93R\x81\x92obQ\x94\x97\x98.";
  for (int opcode = 0; opcode < 256; opcode++) {
    xt_pickle_scan_state state;
    uint8_t byte = (uint8_t)opcode;
    bool invalid = scan(&byte, 1, &state) == XT_SCAN_INVALID;
    CHECK(invalid == !(opcode && strchr(known, opcode)));
    if (invalid) CHECK(state.at == 0);
  }
}

static void tells_where_an_invalid_instruction_is(void) {
  xt_pickle_scan_state state;
  CHECK(scan("\x80\x02K\x07\xffN.", 7, &state) == XT_SCAN_INVALID && state.at == 4);
}

static void tells_how_many_bytes_are_missing(void) {
  xt_pickle_scan_state state;
  CHECK(scan("", 0, &state) == XT_SCAN_SHORT && state.at == 0 && state.wanted == 1);
  CHECK(scan("NX\x10\x00\x00\x00"
             "ab",
             8, &state) == XT_SCAN_SHORT &&
        state.at == 1 && state.wanted == 5 + 16);
  CHECK(scan("\x8d\xff\xff\xff\xff\xff\xff\xff\xff", 9, &state) == XT_SCAN_SHORT && state.wanted == XT_SCAN_MOST);
}

static void counts_payload_bytes(void) {
  enum { LONG = XT_SCAN_PAYLOAD };
  static uint8_t data[2 * LONG];
  xt_pickle_scan_state state;
  memcpy(data,
         "K\x01"
         "B",
         3); /* then the length and that many bytes */
  data[3] = LONG & 0xff, data[4] = LONG >> 8;
  data[7 + LONG] = '.';
  CHECK(scan(data, sizeof data, &state) == XT_SCAN_END && state.at == LONG + 8);
  CHECK(state.payload == LONG + 5);
  CHECK(scan("B\x01\x00\x00\x00x.", 7, &state) == XT_SCAN_END && state.payload == 0);
}

/* The scan and the unpickler agree where a pickle ends. */
static void agrees_with_the_unpickler(const char *path) {
  size_t size, used;
  uint8_t *data = read_whole_file(path, 0, &size);
  xt_arena arena = {0};
  xt_error error;
  xt_storages storages = {.arena = &arena, .max_tensor_bytes = 1 << 24};
  xt_rebuild rebuild = {.arena = &arena, .storages = &storages, .error = &error, .ids = XT_IDS_NONE};
  xt_node *root;
  xt_pickle_scan_state state;
  CHECK(xt_unpickle(data, size, &rebuild, &used, &root) == XT_STATUS_ok);
  CHECK(scan(data, size, &state) == XT_SCAN_END && state.at == used);
  finds_end(data, size);
  xt_rebuild_free(&rebuild);
  xt_storages_free(&storages);
  xt_arena_free(&arena);
  free(data);
}

static int path_count;
static char **paths;

static void ends_of_fixtures(void) {
  CHECK(path_count > 0);
  for (int i = 0; i < path_count; i++) agrees_with_the_unpickler(paths[i]);
}

int main(int argc, char **argv) {
  path_count = argc - 1;
  paths = argv + 1;
  return RUN_TESTS("scan", stops_after_the_stop_instruction, knows_every_instruction,
                   tells_where_an_invalid_instruction_is, tells_how_many_bytes_are_missing, counts_payload_bytes,
                   ends_of_fixtures);
}
