/*
 * pi_hf_int.h - reading config.json, in parts; private to convert/pi_hf*.c.
 */
#ifndef PI_HF_INT_H
#define PI_HF_INT_H

#include "convert/pi_hf.h"

#define PI_HF_MAX_CTX (1u << 24)

/* Where a key is looked up, bound once. */
struct pi_hf_rd {
    const json_t *o;
    const char *path;
    const struct pi_notes *notes;
    const char *act_override; /* --hidden-act or NULL */
};

/* A class of transformers (pi_hf_arch.c). */
struct pi_hf_class {
    const char *name; /* in "architectures" */
    const char *type; /* in "model_type", where there is no other */
    enum pi_arch arch;
    const char *act; /* the activation where no key says it; NULL: a key must */
    bool windowed;   /* its sliding window is in use whenever "sliding_window" says one */
    /* reads what the family has beside the keys that all have; c is zeroed but for those */
    enum pi_code (*read)(const struct pi_hf_rd *r, const struct pi_hf_class *k,
                         struct pi_hf_config *c, struct pi_err *err);
};

/* PI_E_UNSUPPORTED, listing what is. */
enum pi_code pi_hf_class_find(const struct pi_hf_rd *r, const struct pi_hf_class **out,
                              struct pi_err *err) PI_MUST_CHECK;

/* "rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor" (which some classes do not know: partial). */
enum pi_code pi_hf_read_rope(const struct pi_hf_rd *r, bool partial, struct pi_hf_config *c,
                             struct pi_err *err) PI_MUST_CHECK;

/* A count that must be there, in [1, max]. */
enum pi_code pi_hf_need_u32(const struct pi_hf_rd *r, const char *key, uint32_t max, uint32_t *out,
                            struct pi_err *err) PI_MUST_CHECK;

/* PI_E_UNSUPPORTED: "... is not supported". */
enum pi_code pi_hf_refuse(const struct pi_hf_rd *r, const char *what,
                          struct pi_err *err) PI_MUST_CHECK;

#endif
