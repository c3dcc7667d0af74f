/*
 * pi_where.h - what comes with the program: the demo model, and the programs beside it.
 */
#ifndef PI_WHERE_H
#define PI_WHERE_H

#include "common/pi_err.h"

#include <stddef.h>

/* The demo model's path -> path_out (n bytes). Looked for from the program's own folder, as a build tree has it and as an installed prefix has it (which may be
 * a staged or a moved one), then where configure was told. PI_E_IO, naming the places, where it is nowhere. */
enum pi_code pi_where_demo(char *path_out, size_t n, struct pi_err *err) PI_MUST_CHECK;

/* A program of the toolchain, in this one's folder or, where it is not there, wherever PATH has it: what execvp() takes -> path_out (n bytes). */
void pi_where_program(const char *name, char *path_out, size_t n);

#endif
