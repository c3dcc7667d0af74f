/*
 * pi_note.h - lines for people out of library code: what was left out, limited or looks wrong. The program decides where they go.
 */
#ifndef PI_NOTE_H
#define PI_NOTE_H

struct pi_notes {
    void (*say)(void *ctx, const char *line); /* NULL: nobody listens */
    void *ctx;
};

/* One line, cut at 1 KB; notes may be NULL. */
void pi_note(const struct pi_notes *notes, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
