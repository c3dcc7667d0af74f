/*
 * pi_selfcheck.h - does the written file compute what its source computes? Asked before the file appears.
 *
 * A built-in English text is run through the source by a plain forward pass of its own (Hugging Face's conventions: unpermuted q and k, the down
 * projection as the checkpoint has it; one tensor at a time as F32) and through the engine on the target. Float targets: max |delta| / max |logit|
 * <= 5e-3; quantised ones: mean KL <= 0.1 nats and correlation >= 0.7. For a GGUF source the engine runs on both files.
 */
#ifndef PI_SELFCHECK_H
#define PI_SELFCHECK_H

#include "common/pi_err.h"
#include "common/pi_pool.h"
#include "common/pi_predictor.h"
#include "convert/pi_hf.h"
#include "convert/pi_note.h"
#include "convert/pi_source.h"
#include "convert/pi_write_model.h"
#include "runtime/pi_model.h"

struct pi_selfcheck {
    const char *target;         /* where the finished file can be read */
    const char *output;         /* what it will be called, for messages */
    const struct pi_plan *plan; /* its types */
    struct pi_pool *pool;
    const struct pi_notes *notes;
    bool progress;
    bool accept_edited; /* a GGUF source whose checksums do not fit is read as it is */
};

#define PI_SELFCHECK_TOKENS 24 /* most tokens of the text */

struct pi_selfcheck_prompt {
    int32_t ids[PI_SELFCHECK_TOKENS];
    uint32_t n;
    bool english; /* the ids are those of the text */
};

/* The text in a model's tokens. A vocabulary that we cannot encode with (another's pre-tokeniser) still gives ids to compare with; one that contradicts itself is
 * an error, as pi-run would refuse the file. */
enum pi_code pi_selfcheck_make_prompt(const struct pi_model *m, struct pi_selfcheck_prompt *out,
                                      struct pi_err *err) PI_MUST_CHECK;

/* Fills in recall, precision and density of each of p's layers, measured on the text, token by token in predicted mode; on the model at k->target. *gain_out:
 * over all layers the share of active neurons that are predicted less the share of inactive ones that are: 0 is what chance gives, 1 perfect. Errors of the
 * engine; PI_E_NOMEM. */
enum pi_code pi_selfcheck_predictor(const struct pi_selfcheck *k, struct pi_predictor *p,
                                    double *gain_out, struct pi_err *err) PI_MUST_CHECK;

/* Judges two sets of logits (n_tok, n_vocab): PI_OK or PI_E_SELFCHECK. For the two below, and for tests. */
enum pi_code pi_selfcheck_compare(const struct pi_selfcheck *k, const float *want, const float *got,
                                  uint32_t n_tok, uint32_t n_vocab,
                                  struct pi_err *err) PI_MUST_CHECK;

/* PI_E_SELFCHECK with the measure and its limit; PI_E_NOMEM. A model that predicts the text no better than chance gets a note. */
enum pi_code pi_selfcheck_hf(const struct pi_selfcheck *k, const struct pi_hf_config *c,
                             const struct pi_source *src, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_selfcheck_gguf(const struct pi_selfcheck *k, const char *source,
                               const char *act_override, struct pi_err *err) PI_MUST_CHECK;

#endif
