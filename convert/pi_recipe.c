#include "config.h"

#include "convert/pi_recipe.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PLAIN(name, number, t)                                        \
    {                                                                 \
        name, number, t, t, t, PI_RECIPE_NO_LAYER, PI_RECIPE_NO_LAYER \
    }

/* The order is that of PI_RECIPE_NAMES. */
static const struct pi_recipe recipes[] = {
    PLAIN("f32", 0, PI_TYPE_F32),
    PLAIN("f16", 1, PI_TYPE_F16),
    PLAIN("bf16", 32, PI_TYPE_BF16),
    PLAIN("q8_0", 7, PI_TYPE_Q8_0),
    PLAIN("q6_k", 18, PI_TYPE_Q6_K),
    {"q5_k_m", 17, PI_TYPE_Q5_K, PI_TYPE_Q6_K, PI_TYPE_Q6_K, PI_RECIPE_SPREAD, PI_RECIPE_SPREAD},
    {"q5_k_s", 16, PI_TYPE_Q5_K, PI_TYPE_Q6_K, PI_TYPE_Q5_K, PI_RECIPE_NO_LAYER,
     PI_RECIPE_NO_LAYER},
    PLAIN("q5_k", 16, PI_TYPE_Q5_K),
    PLAIN("q5_1", 9, PI_TYPE_Q5_1),
    PLAIN("q5_0", 8, PI_TYPE_Q5_0),
    {"q4_k_m", 15, PI_TYPE_Q4_K, PI_TYPE_Q6_K, PI_TYPE_Q6_K, PI_RECIPE_SPREAD, PI_RECIPE_SPREAD},
    {"q4_k_s", 14, PI_TYPE_Q4_K, PI_TYPE_Q6_K, PI_TYPE_Q5_K, PI_RECIPE_FIRST, PI_RECIPE_FIRST},
    PLAIN("q4_k", 14, PI_TYPE_Q4_K),
    PLAIN("q4_1", 3, PI_TYPE_Q4_1),
    PLAIN("q4_0", 2, PI_TYPE_Q4_0),
};
#define N_RECIPES (sizeof(recipes) / sizeof(recipes[0]))

enum pi_code pi_recipe_find(const char *name, const struct pi_recipe **out, struct pi_err *err)
{
    for (size_t i = 0; i < N_RECIPES; i++)
        if (strcasecmp(name, recipes[i].name) == 0) {
            *out = &recipes[i];
            return PI_OK;
        }
    return pi_err_set(err, PI_E_USAGE, "--type %s: must be one of %s", name, PI_RECIPE_NAMES);
}

static bool is_plain(const struct pi_recipe *r)
{
    return r->head == r->type && r->v == PI_RECIPE_NO_LAYER;
}

const struct pi_recipe *pi_recipe_plain(enum pi_type type)
{
    for (size_t i = 0; i < N_RECIPES; i++)
        if (recipes[i].type == type && is_plain(&recipes[i]))
            return &recipes[i];
    return NULL;
}

static bool layer_has_more(enum pi_recipe_layers which, uint32_t layer, uint32_t n)
{
    const uint32_t eighth = n / 8 > 0 ? n / 8 : 1;

    switch (which) {
    case PI_RECIPE_FIRST:
        return layer < eighth;
    case PI_RECIPE_SPREAD:
        return layer < eighth || layer + eighth >= n || (layer - eighth) % 3 == 2;
    case PI_RECIPE_NO_LAYER:
        break;
    }
    return false;
}

enum pi_type pi_recipe_type(const struct pi_recipe *r, const struct pi_recipe_model *m,
                            const char *name)
{
    enum pi_recipe_layers which = PI_RECIPE_NO_LAYER;
    unsigned long layer;
    char *rest;

    if (strcmp(name, m->tied ? "token_embd.weight" : "output.weight") == 0)
        return r->head;
    if (strncmp(name, "blk.", 4) != 0)
        return r->type;
    layer = strtoul(name + 4, &rest, 10);
    if (strcmp(rest, ".attn_v.weight") == 0)
        which = r->v;
    else if (strcmp(rest, ".ffn_down_t.weight") == 0 || strcmp(rest, ".ffn_down.weight") == 0)
        which = r->down;
    return layer < m->n_layer && layer_has_more(which, (uint32_t)layer, m->n_layer) ? r->more
                                                                                    : r->type;
}

enum pi_type pi_recipe_fit(enum pi_type type, uint64_t n)
{
    uint64_t bytes;

    if (pi_type_row_bytes(type, n, &bytes))
        return type;
    if (pi_type_info((uint32_t)type)->block_elems > 32 &&
        pi_type_row_bytes(PI_TYPE_Q8_0, n, &bytes))
        return PI_TYPE_Q8_0;
    return PI_TYPE_F16;
}

enum pi_code pi_keep_parse(const char *text, struct pi_keep *out, struct pi_err *err)
{
    const char *eq = strrchr(text, '=');
    struct pi_keep k = {.text = text};

    if (eq == NULL || eq == text)
        return pi_err_set(err, PI_E_USAGE,
                          "--keep %s: must be PATTERN=TYPE, as in --keep 'output.weight=f16'",
                          text);
    if ((size_t)(eq - text) >= sizeof(k.pattern))
        return pi_err_set(err, PI_E_USAGE, "--keep: a pattern of %zu bytes, at most %zu fit",
                          (size_t)(eq - text), sizeof(k.pattern) - 1);
    memcpy(k.pattern, text, (size_t)(eq - text));
    for (size_t i = 0; i < N_RECIPES; i++)
        if (is_plain(&recipes[i]) && strcasecmp(eq + 1, recipes[i].name) == 0) {
            k.type = recipes[i].type;
            *out = k;
            return PI_OK;
        }
    return pi_err_set(err, PI_E_USAGE,
                      "--keep %s: '%s' is no type of one matrix (f32|f16|bf16|q8_0|q6_k|q5_k|q5_1|"
                      "q5_0|q4_k|q4_1|q4_0)",
                      text, eq + 1);
}

struct pi_keep *pi_keep_find(struct pi_keep *k, size_t n, const char *name)
{
    struct pi_keep *first = NULL;

    for (size_t i = 0; i < n; i++) {
        if (fnmatch(k[i].pattern, name, 0) != 0)
            continue;
        k[i].n_found++;
        if (first == NULL) {
            first = &k[i];
            first->n_used++;
        }
    }
    return first;
}
