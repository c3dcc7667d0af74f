/*
 * pi_argument.h - what people give pi-convert in place of a model.
 */
#ifndef PI_ARGUMENT_H
#define PI_ARGUMENT_H

#include "common/pi_err.h"

#include <stdbool.h>

/* Is path a folder (of Hugging Face) or a file (GGUF)? PI_E_IO where nothing is there; PI_E_USAGE where the name alone tells that something beside it
 * was meant: weights of a folder that must be given whole, or a folder without config.json that holds GGUF files. */
enum pi_code pi_argument_check(const char *path, bool *is_folder, struct pi_err *err) PI_MUST_CHECK;

#endif
