/*
 * pi_safetensors.h - reader of safetensors files.
 *
 * A file is trusted in nothing: header length, JSON, dtypes, shape products, offsets against shape and file, holes and overlaps and double names
 * are checked before anything is used.
 */
#ifndef PI_SAFETENSORS_H
#define PI_SAFETENSORS_H

#include "convert/pi_source.h"

/* Checks the bytes of one file and appends its tensors (unsorted); path is for messages and must live as long as the source. PI_E_CORRUPT,
 * PI_E_UNSUPPORTED (a dtype), PI_E_NOMEM. */
enum pi_code pi_safetensors_parse(const uint8_t *data, size_t size, const char *path,
                                  struct pi_source *src, struct pi_err *err) PI_MUST_CHECK;

#endif
