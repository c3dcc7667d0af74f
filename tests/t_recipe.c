/* Types by name: mixes, fallbacks, patterns. */
#include "config.h"

#include "convert/pi_recipe.h"
#include "tests/tap.h"

#include <stdio.h>
#include <string.h>

static struct pi_err e;

static const struct pi_recipe *find(const char *name)
{
    const struct pi_recipe *r = NULL;

    PASSES(pi_recipe_find(name, &r, &e), e);
    return r;
}

static void test_names(void)
{
    const struct pi_recipe *r = NULL;
    const char *p = PI_RECIPE_NAMES;
    size_t n = 0;

    while (*p != '\0') {
        char name[16] = "";

        (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(p, "|"), p);
        STREQ(find(name)->name, name);
        p += strlen(name) + (p[strlen(name)] == '|');
        n++;
    }
    EQ(n, 15);
    OK(find("Q4_K_M") == find("q4_k_m") && find("Bf16") == find("bf16"));
    FAILS(pi_recipe_find("q4_k_", &r, &e), PI_E_USAGE, "--type q4_k_: must be one of f32|f16", e);
    FAILS(pi_recipe_find("", &r, &e), PI_E_USAGE, "must be one of", e);
    STREQ(pi_recipe_plain(PI_TYPE_Q4_K)->name, "q4_k");
    STREQ(pi_recipe_plain(PI_TYPE_Q5_K)->name, "q5_k");
    STREQ(pi_recipe_plain(PI_TYPE_F32)->name, "f32");
    OK(pi_recipe_plain(PI_TYPE_I32) == NULL && pi_recipe_plain(PI_TYPE_Q2_K) == NULL);
}

/* The layers, of n, whose tensor of this stem has the type. */
static const char *layers_of(const char *recipe, const char *stem, uint32_t n, enum pi_type type)
{
    static char text[256];
    const struct pi_recipe_model m = {.n_layer = n, .tied = false};

    text[0] = '\0';
    for (uint32_t l = 0; l < n; l++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "blk.%u.%s", l, stem);
        if (pi_recipe_type(find(recipe), &m, name) == type)
            (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "%u ", l);
    }
    return text;
}

static void test_mixes(void)
{
    const struct pi_recipe_model own = {.n_layer = 24, .tied = false},
                                 tied = {.n_layer = 24, .tied = true};
    const char *more = "0 1 2 5 8 11 14 17 20 21 22 23 ";

    STREQ(layers_of("q4_k_m", "attn_v.weight", 24, PI_TYPE_Q6_K), more);
    STREQ(layers_of("q4_k_m", "ffn_down_t.weight", 24, PI_TYPE_Q6_K), more);
    STREQ(layers_of("q5_k_m", "ffn_down.weight", 24, PI_TYPE_Q6_K), more);
    STREQ(layers_of("q4_k_s", "ffn_down_t.weight", 24, PI_TYPE_Q5_K), "0 1 2 ");
    STREQ(layers_of("q4_k_s", "attn_v.weight", 3, PI_TYPE_Q5_K), "0 ");
    STREQ(layers_of("q4_k_m", "attn_v.weight", 3, PI_TYPE_Q6_K), "0 2 ");
    STREQ(layers_of("q4_k_m", "attn_v.weight", 1, PI_TYPE_Q6_K), "0 ");
    STREQ(layers_of("q5_k_s", "attn_v.weight", 3, PI_TYPE_Q5_K), "0 1 2 ");
    STREQ(layers_of("q4_k_m", "attn_q.weight", 3, PI_TYPE_Q4_K), "0 1 2 ");
    STREQ(layers_of("q4_k", "attn_v.weight", 3, PI_TYPE_Q4_K), "0 1 2 ");
    EQ(pi_recipe_type(find("q4_k_m"), &own, "output.weight"), PI_TYPE_Q6_K);
    EQ(pi_recipe_type(find("q4_k_m"), &own, "token_embd.weight"), PI_TYPE_Q4_K);
    EQ(pi_recipe_type(find("q4_k_m"), &tied, "token_embd.weight"), PI_TYPE_Q6_K);
    EQ(pi_recipe_type(find("q4_0"), &own, "output.weight"), PI_TYPE_Q4_0);
    EQ(pi_recipe_type(find("q4_k_m"), &own, "blk.24.attn_v.weight"), PI_TYPE_Q4_K);
    EQ(pi_recipe_type(find("q4_k_m"), &own, "blk.x.attn_v.weight"), PI_TYPE_Q4_K);
}

static void test_fit(void)
{
    static const enum pi_type k[] = {PI_TYPE_Q4_K, PI_TYPE_Q5_K, PI_TYPE_Q6_K};
    static const enum pi_type b[] = {PI_TYPE_Q8_0, PI_TYPE_Q4_0, PI_TYPE_Q4_1, PI_TYPE_Q5_0,
                                     PI_TYPE_Q5_1};

    for (size_t i = 0; i < sizeof(k) / sizeof(k[0]); i++) {
        EQ(pi_recipe_fit(k[i], 512), k[i]);
        EQ(pi_recipe_fit(k[i], 96), PI_TYPE_Q8_0);
        EQ(pi_recipe_fit(k[i], 48), PI_TYPE_F16);
    }
    for (size_t i = 0; i < sizeof(b) / sizeof(b[0]); i++) {
        EQ(pi_recipe_fit(b[i], 96), b[i]);
        EQ(pi_recipe_fit(b[i], 257), PI_TYPE_F16);
    }
    EQ(pi_recipe_fit(PI_TYPE_F32, 1), PI_TYPE_F32);
    EQ(pi_recipe_fit(PI_TYPE_BF16, 7), PI_TYPE_BF16);
}

static void test_keep(void)
{
    struct pi_keep k[3];

    PASSES(pi_keep_parse("blk.*.attn_?.weight=Q8_0", &k[0], &e), e);
    PASSES(pi_keep_parse("blk.[02].*=f32", &k[1], &e), e);
    PASSES(pi_keep_parse("a=b=q6_K", &k[2], &e), e);
    STREQ(k[2].pattern, "a=b");
    EQ(k[2].type, PI_TYPE_Q6_K);
    OK(pi_keep_find(k, 3, "blk.0.attn_q.weight") == &k[0]); /* the first that fits */
    OK(pi_keep_find(k, 3, "blk.2.attn_output.weight") == &k[1]);
    OK(pi_keep_find(k, 3, "blk.1.ffn_up.weight") == NULL);
    OK(pi_keep_find(k, 3, "xblk.0.attn_q.weight") == NULL);
    OK(pi_keep_find(k, 3, "a=b") == &k[2]);
    EQ(k[0].n_found, 1);
    EQ(k[1].n_found, 2);
    EQ(k[1].n_used, 1);
    FAILS(pi_keep_parse("f16", &k[0], &e), PI_E_USAGE, "must be PATTERN=TYPE", e);
    FAILS(pi_keep_parse("=f16", &k[0], &e), PI_E_USAGE, "must be PATTERN=TYPE", e);
    FAILS(pi_keep_parse("a=", &k[0], &e), PI_E_USAGE, "'' is no type", e);
    FAILS(pi_keep_parse("a=q4_k_m", &k[0], &e), PI_E_USAGE, "'q4_k_m' is no type of one matrix", e);
}

int main(void)
{
    test_names();
    test_mixes();
    test_fit();
    test_keep();
    return DONE();
}
