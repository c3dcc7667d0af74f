/*
 * pi_gguf_import.h - a GGUF file as the source of a conversion: ours, llama.cpp's, or PowerInfer's.
 */
#ifndef PI_GGUF_IMPORT_H
#define PI_GGUF_IMPORT_H

#include "common/pi_err.h"
#include "common/pi_gguf.h"
#include "common/pi_shape.h"
#include "convert/pi_note.h"
#include "convert/pi_write_model.h"

/* Adds every tensor of g to plan under its own name; ffn_down becomes ffn_down_t. Predictors (blk.N.fc1, .fc2) inside PowerInfer's files
 * stay behind: pi_import.h takes them. Pointers into g are borrowed. */
enum pi_code pi_gguf_map(const struct pi_gguf *g, struct pi_plan *plan,
                         struct pi_err *err) PI_MUST_CHECK;

/* Copies every key but those that describe the file itself (checksums, alignment, quantisation). s: of the target;
 * {arch}.hidden_activation is always set. */
enum pi_code pi_gguf_copy_keys(const struct pi_gguf *g, const struct pi_shape *s,
                               struct pi_gguf_writer *w, struct pi_err *err) PI_MUST_CHECK;

/* What the architecture has no place for: PI_E_UNSUPPORTED, naming it (parts of another architecture or of a form that nobody here reads, such as scales;
 * layers in another spelling; weights of a type without kernels), but a note where it is unknown and beside the layers. PI_E_CORRUPT for q, k and v both in one matrix and apart. */
enum pi_code pi_gguf_check_names(const struct pi_gguf *g, const struct pi_shape *s,
                                 const struct pi_notes *notes, struct pi_err *err) PI_MUST_CHECK;

#endif
