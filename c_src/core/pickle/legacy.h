/* What a legacy checkpoint consists of. It is a file (formats/legacy.h), or bytes inside a pickle (rebuild_nested.c).
 */
#ifndef XT_PICKLE_LEGACY_H
#define XT_PICKLE_LEGACY_H

/* The pickled magic number without the leading PROTO opcode. */
#define XT_LEGACY_MAGIC "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."

/* The whole first pickle of protocol 0 or 1. */
#define XT_LEGACY_TEXT_MAGIC "L119547037146038801333356L\n."

/* The pickles, in their order */
enum {
  XT_LEGACY_PICKLE_MAGIC,
  XT_LEGACY_PICKLE_PROTOCOL,
  XT_LEGACY_PICKLE_SYSTEM,
  XT_LEGACY_PICKLE_OBJECT,
  XT_LEGACY_PICKLE_KEYS,
  XT_LEGACY_PICKLES
};

enum {
  XT_LEGACY_PROTOCOL = 1001,
  XT_LEGACY_PREFIX = 8 /* size of the number of elements of a storage */
};

#endif
