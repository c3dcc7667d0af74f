/*
 * pi_utf8.h - well-formed UTF-8 (Unicode, table 3-7): no surrogates, no overlong forms, nothing above U+10FFFF.
 */
#ifndef PI_UTF8_H
#define PI_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the well-formed character at s (n > 0 bytes), or 0. */
unsigned pi_utf8_char(const char *s, size_t n);

/* Bytes of the character at s (n > 0 bytes), or of the longest beginning of one that s breaks off, which readers replace
 * by one U+FFFD (Unicode, section 3.9); *ok says which. */
unsigned pi_utf8_part(const char *s, size_t n, bool *ok);

#endif
