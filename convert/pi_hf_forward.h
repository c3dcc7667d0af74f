/*
 * pi_hf_forward.h - a plain forward pass over a Hugging Face checkpoint: the independent half of the self-check.
 *
 * It follows transformers' conventions (rows of q and k as stored, rotate-half, the down projection as the checkpoint has it) and shares no code with the
 * engine but the conversions of element types. F32, sums of norms in F64; slow and simple on purpose.
 */
#ifndef PI_HF_FORWARD_H
#define PI_HF_FORWARD_H

#include "common/pi_err.h"
#include "convert/pi_hf.h"
#include "convert/pi_source.h"

#include <stdint.h>

/* logits_out (n_tok, n_vocab) of n_tok tokens from position 0. Matrices are read in tiles of some rows. The checkpoint was checked by pi_hf_map(). */
enum pi_code pi_hf_forward(const struct pi_hf_config *c, const struct pi_source *src,
                           const int32_t *tokens, uint32_t n_tok, float *logits_out,
                           struct pi_err *err) PI_MUST_CHECK;

#endif
