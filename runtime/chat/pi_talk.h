/*
 * pi_talk.h - a conversation: its messages, and session files, which are JSON and bound to the model by its lineage (docs/formats.md).
 *
 * Order: a system message at most, in front; then the user's and the assistant's in turns.
 */
#ifndef PI_TALK_H
#define PI_TALK_H

#include "common/pi_artifact.h"
#include "runtime/pi_chat.h"

#include <stdbool.h>
#include <stddef.h>

struct pi_talk {
    struct pi_message *m; /* (n) owned, with their texts */
    size_t n, cap;
};

/* Copies n bytes; what is no UTF-8 becomes U+FFFD. PI_E_NOMEM. */
enum pi_code pi_talk_add(struct pi_talk *t, enum pi_role role, const char *text, size_t n,
                         struct pi_err *err) PI_MUST_CHECK;
/* Takes out n messages from the one at on. */
void pi_talk_drop(struct pi_talk *t, size_t at, size_t n);
/* 1 where the first message is the system's, else 0. */
size_t pi_talk_first(const struct pi_talk *t);
void pi_talk_free(struct pi_talk *t); /* accepts a zeroed one */

/* Appears complete or not at all. PI_E_IO, PI_E_NOSPACE, PI_E_NOMEM. */
enum pi_code pi_talk_save(const struct pi_talk *t, const char *path,
                          const struct pi_lineage *lineage, struct pi_err *err) PI_MUST_CHECK;
/* out is written on success alone: what was in it is released. PI_E_IO; PI_E_CORRUPT; PI_E_MISMATCH: of another model, or of a newer version; PI_E_RANGE. */
enum pi_code pi_talk_load(const char *path, const struct pi_lineage *lineage, struct pi_talk *out,
                          struct pi_err *err) PI_MUST_CHECK;

#endif
