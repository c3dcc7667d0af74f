/*
 * pi_recipe.h - which type a model's matrices are written in: one type for all, a mix, and exceptions by name.
 *
 * A mix gives more bits to what harms most when it is rounded: the output head (the embedding where both are one), and in part of the layers the attention's
 * values and the down projection. A row that is no multiple of a type's block falls back: K type -> Q8_0 -> F16.
 */
#ifndef PI_RECIPE_H
#define PI_RECIPE_H

#include "common/pi_err.h"
#include "common/pi_type.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pi_recipe_layers {
    PI_RECIPE_NO_LAYER,
    PI_RECIPE_FIRST, /* the first eighth, at least one */
    PI_RECIPE_SPREAD /* the first and the last eighth, every third between */
};

struct pi_recipe {
    const char *name;   /* as --type has it, lower case */
    uint32_t file_type; /* llama.cpp's number for general.file_type */
    enum pi_type type;  /* of all matrices but these: */
    enum pi_type head;  /* of the output head */
    enum pi_type more;  /* of attn_v and ffn_down in the layers that follow */
    enum pi_recipe_layers v, down;
};

/* By name in any letter case: PI_E_USAGE naming all there are. */
enum pi_code pi_recipe_find(const char *name, const struct pi_recipe **out,
                            struct pi_err *err) PI_MUST_CHECK;
/* The one that gives every matrix this type; NULL for types that are not written. */
const struct pi_recipe *pi_recipe_plain(enum pi_type type);
/* "f32|f16|...", for --help */
#define PI_RECIPE_NAMES                                    \
    "f32|f16|bf16|q8_0|q6_k|q5_k_m|q5_k_s|q5_k|q5_1|q5_0|" \
    "q4_k_m|q4_k_s|q4_k|q4_1|q4_0"

/* What a recipe has to know of a model. */
struct pi_recipe_model {
    uint32_t n_layer;
    bool tied; /* no output.weight: token_embd.weight is the head */
};

/* The type for the matrix of this name, whatever its rows are. */
enum pi_type pi_recipe_type(const struct pi_recipe *r, const struct pi_recipe_model *m,
                            const char *name);

/* type, or what it falls back to for rows of n elements. */
enum pi_type pi_recipe_fit(enum pi_type type, uint64_t n);

#define PI_KEEP_MAX 64

/* --keep PATTERN=TYPE */
struct pi_keep {
    const char *text;  /* as given; borrowed */
    char pattern[192]; /* a glob (fnmatch) on the target's names */
    enum pi_type type;
    size_t n_found, n_used; /* matrices it fits; those that no earlier pattern took */
};

/* PI_E_USAGE, naming what is wrong with text. */
enum pi_code pi_keep_parse(const char *text, struct pi_keep *out, struct pi_err *err) PI_MUST_CHECK;
/* The first of k (n) that fits the name, or NULL; counts. */
struct pi_keep *pi_keep_find(struct pi_keep *k, size_t n, const char *name);

#endif
