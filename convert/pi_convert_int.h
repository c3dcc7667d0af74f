/*
 * pi_convert_int.h - a conversion on its way: opened (pi_convert_open.c), written (pi_convert.c), checked (pi_convert_check.c); private to convert/pi_convert*.c.
 */
#ifndef PI_CONVERT_INT_H
#define PI_CONVERT_INT_H

#include "common/pi_artifact.h"
#include "common/pi_gguf.h"
#include "common/pi_shape.h"
#include "convert/pi_convert.h"
#include "convert/pi_hf.h"
#include "convert/pi_hf_vocab.h"
#include "convert/pi_import.h"
#include "convert/pi_write_model.h"

/* A source with everything that was made of it; one of hf and gguf is in use. */
struct pi_conversion {
    const struct pi_convert_options *opt;
    bool is_hf;
    struct pi_json config;
    struct pi_hf_config hf;
    struct pi_source src;
    struct pi_vocab vocab;
    struct pi_gguf gguf;
    struct pi_plan plan;
    struct pi_lineage lineage;
    struct pi_shape shape;
    struct pi_import pred; /* others' predictors, if any */
    double *counts;        /* (n_layer, n_ff) others' activation counts, or NULL */
};

/* Opens c->opt's source, checks it, plans its tensors and takes over what lies beside it. The caller closes c in every case. Errors of the readers. */
enum pi_code pi_conversion_open(struct pi_conversion *c, struct pi_err *err) PI_MUST_CHECK;
void pi_conversion_close(struct pi_conversion *c);

/* PI_E_USAGE where the output would write over what is read. */
enum pi_code pi_conversion_check_output(const struct pi_conversion *c,
                                        struct pi_err *err) PI_MUST_CHECK;
/* Finishes w's file and runs it beside the source; what others' predictors are worth is measured and stored in c->pred. PI_E_SELFCHECK, PI_E_MISMATCH. */
enum pi_code pi_conversion_check_result(struct pi_conversion *c, struct pi_gguf_writer *w,
                                        struct pi_err *err) PI_MUST_CHECK;

#endif
