/*
 * pi_convert_report.h - what a conversion will write or wrote: a table for people, an object for programs, lines on what quantisation cost.
 */
#ifndef PI_CONVERT_REPORT_H
#define PI_CONVERT_REPORT_H

#include "common/pi_err.h"
#include "common/pi_shape.h"
#include "convert/pi_note.h"
#include "convert/pi_write_model.h"

#include <stdio.h>

struct pi_convert_report {
    const struct pi_plan *plan;     /* types chosen */
    const struct pi_recipe *recipe; /* NULL: the types of a quantised source were kept */
    const struct pi_shape *shape;   /* of source and output */
    const char *output;             /* NULL: none was given */
    uint64_t file_bytes;            /* of the output */
    uint64_t memory_bytes;          /* buffers, about */
    uint64_t room_bytes;            /* free for the output; UINT64_MAX: not known */
};

/* One line on what the activation means: can inactive neurons be left out? */
void pi_report_activation(const struct pi_convert_report *r, const struct pi_notes *notes);
/* --list: a line a tensor, then totals and what it takes. */
enum pi_code pi_report_list(const struct pi_convert_report *r, FILE *to,
                            struct pi_err *err) PI_MUST_CHECK;
/* --json: one object; errors where they were measured. */
enum pi_code pi_report_json(const struct pi_convert_report *r, FILE *to,
                            struct pi_err *err) PI_MUST_CHECK;
/* One line on all quantised tensors; verbose: one a tensor before it. Nothing where nothing was quantised. */
void pi_report_errors(const struct pi_plan *plan, bool verbose, const struct pi_notes *notes);

#endif
