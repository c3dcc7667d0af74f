/* pi_gguf_int.h - what reader and writer of GGUF files share; private to common/ */
#ifndef PI_GGUF_INT_H
#define PI_GGUF_INT_H

#include "common/pi_gguf.h"

#define PI_GGUF_KEY_CRC        "pi.crc32"
#define PI_GGUF_KEY_HEADER_CRC "pi.header_crc32"

/* Limits on names; the specification says 65535 for keys and 64 for tensors, which some writers
 * pass by a little. */
#define PI_GGUF_MAX_KEY  65535
#define PI_GGUF_MAX_NAME 255

/* The end of a message about a CRC that does not fit: what it may mean, and for models the way out. */
const char *pi_gguf_edited_hint(const struct pi_gguf *g);

/* tensor_by_name anew, for all tensors: PI_E_CORRUPT for a name that occurs twice. */
enum pi_code pi_gguf_index_tensors(struct pi_gguf *g, struct pi_err *err) PI_MUST_CHECK;

/* Orders byte strings, shorter first among equals. */
int pi_str_cmp(struct pi_str a, struct pi_str b);

#endif
