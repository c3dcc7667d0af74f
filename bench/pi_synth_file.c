/* pi_synth_file.c - what stands in a synthetic model's file: tensors, keys, a vocabulary. */
#include "config.h"

#include "bench/pi_synth.h"

#include "common/pi_alloc.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_VOCAB  320 /* three special tokens, 256 bytes, the space, letters, and some to draw */
#define N_SPECIAL  3u
#define LOGIT_SD   2.0 /* flat enough that drawn tokens vary, not so flat that all are alike */
#define PIECE_MAX  16
#define SPACE_MARK "\xe2\x96\x81"

static enum pi_code bad(struct pi_err *err, const char *what)
{
    return pi_err_set(err, PI_E_USAGE, "%s", what);
}

enum pi_code pi_synth_check(const struct pi_synth_spec *s, struct pi_err *err)
{
    if (s->n_embd % 32 != 0)
        return bad(err, "--embd: must be a multiple of 32");
    if (s->n_embd % s->n_head != 0 || s->n_embd / s->n_head % 2 != 0)
        return bad(err, "--heads: must divide --embd into heads of an even width");
    if (s->n_head % s->n_head_kv != 0)
        return bad(err, "--kv-heads: must divide --heads");
    if (s->arch == PI_ARCH_OPT && s->n_head_kv != s->n_head)
        return bad(err, "--kv-heads: opt has as many as heads");
    if (s->rank < 8 || s->rank > s->n_embd)
        return bad(err, "--rank: must be from 8 to --embd");
    if (s->pred_type != PI_TYPE_F16 && s->rank % 32 != 0)
        return bad(err, "--rank: must be a multiple of 32 where the predictor is quantised");
    if (pi_type_info(s->type)->block_elems > 32 && s->n_embd % 256 != 0)
        return bad(err, "--embd: must be a multiple of 256 for K types");
    if (s->n_vocab < MIN_VOCAB)
        return bad(err, "--vocab: must be at least 320");
    return PI_OK;
}

/* ---- tensors -------------------------------------------------------------------------------- */

struct lister {
    struct pi_synth_tensors *out;
    const struct pi_synth_spec *s;
    uint32_t layer;
    struct pi_err *err;
};

/* Name "stem", or "blk.N.stem" of a layer. */
static enum pi_code add(const struct lister *l, bool in_layer, const char *stem,
                        const struct pi_synth_tensor *like)
{
    enum pi_code rc = PI_OK;
    struct pi_synth_tensors *o = l->out;
    struct pi_synth_tensor *t;

    PI_TRY(pi_grow_array(&o->t, &o->cap, o->n + 1, sizeof(*o->t), l->err));
    t = &o->t[o->n++];
    *t = *like;
    t->layer = l->layer;
    if (in_layer)
        (void)snprintf(t->name, sizeof(t->name), "blk.%u.%s", (unsigned)l->layer, stem);
    else
        (void)snprintf(t->name, sizeof(t->name), "%s", stem);
    if (!pi_type_row_bytes(t->type, t->n_cols, &t->row_bytes))
        PI_FAIL(l->err, PI_E_USAGE, "tensor %s: rows of %u elements cannot be %s", t->name,
                (unsigned)t->n_cols, pi_type_name(t->type));
out:
    return rc;
}

static enum pi_code add_mat(const struct lister *l, bool in_layer, const char *stem,
                            uint32_t n_rows, uint32_t n_cols, double scale)
{
    return add(l, in_layer, stem,
               &(struct pi_synth_tensor){
                   .type = l->s->type, .n_rows = n_rows, .n_cols = n_cols, .scale = (float)scale});
}

static enum pi_code add_filled(const struct lister *l, bool in_layer, const char *stem,
                               uint32_t n_rows, enum pi_synth_fill fill)
{
    return add(l, in_layer, stem,
               &(struct pi_synth_tensor){
                   .fill = fill, .type = l->s->type, .n_rows = n_rows, .n_cols = l->s->n_embd});
}

static enum pi_code add_vec(const struct lister *l, bool in_layer, const char *stem, uint32_t n,
                            double mean, double scale)
{
    return add(l, in_layer, stem,
               &(struct pi_synth_tensor){.type = PI_TYPE_F32,
                                         .n_rows = 1,
                                         .n_cols = n,
                                         .mean = (float)mean,
                                         .scale = (float)scale});
}

/* Weights near 1; OPT's have biases near 0. */
static enum pi_code add_norm(const struct lister *l, bool in_layer, const char *name)
{
    enum pi_code rc = PI_OK;
    char stem[40];

    (void)snprintf(stem, sizeof(stem), "%s.weight", name);
    PI_TRY(add_vec(l, in_layer, stem, l->s->n_embd, 1.0, 0.05));
    (void)snprintf(stem, sizeof(stem), "%s.bias", name);
    if (l->s->arch == PI_ARCH_OPT)
        PI_TRY(add_vec(l, in_layer, stem, l->s->n_embd, 0.0, 0.01));
out:
    return rc;
}

static enum pi_code add_attn(const struct lister *l, double step)
{
    enum pi_code rc = PI_OK;
    const struct pi_synth_spec *s = l->s;
    const uint32_t n = s->n_embd, n_kv = n / s->n_head * s->n_head_kv;
    const double unit = 1.0 / sqrt(n); /* a normed input gives outputs of variance 1 */

    PI_TRY(add_norm(l, true, "attn_norm"));
    PI_TRY(add_mat(l, true, "attn_q.weight", n, n, unit));
    PI_TRY(add_mat(l, true, "attn_k.weight", n_kv, n, unit));
    PI_TRY(add_mat(l, true, "attn_v.weight", n_kv, n, unit));
    PI_TRY(add_mat(l, true, "attn_output.weight", n, n, unit * step));
    if (s->arch != PI_ARCH_OPT)
        return PI_OK;
    PI_TRY(add_vec(l, true, "attn_q.bias", n, 0, 0.01));
    PI_TRY(add_vec(l, true, "attn_k.bias", n_kv, 0, 0.01));
    PI_TRY(add_vec(l, true, "attn_v.bias", n_kv, 0, 0.01));
    PI_TRY(add_vec(l, true, "attn_output.bias", n, 0, 0.1 * step));
out:
    return rc;
}

static enum pi_code add_ffn(const struct lister *l, double step)
{
    enum pi_code rc = PI_OK;
    const struct pi_synth_spec *s = l->s;
    const uint32_t n = s->n_embd;
    /* an active neuron's output has a mean square of about 0.8 */
    const double down = step / sqrt(0.8 * (double)s->density * s->n_ff);

    PI_TRY(add_norm(l, true, "ffn_norm"));
    if (s->arch == PI_ARCH_OPT) {
        PI_TRY(add_filled(l, true, "ffn_up.weight", s->n_ff, PI_SYNTH_GATE));
        PI_TRY(add_vec(l, true, "ffn_up.bias", s->n_ff, 0, 0.01));
    } else {
        PI_TRY(add_filled(l, true, "ffn_gate.weight", s->n_ff, PI_SYNTH_GATE));
        PI_TRY(add_mat(l, true, "ffn_up.weight", s->n_ff, n, 1.0 / sqrt(n)));
    }
    if (s->row_major_down)
        PI_TRY(add_mat(l, true, "ffn_down.weight", n, s->n_ff, down));
    else
        PI_TRY(add_mat(l, true, "ffn_down_t.weight", s->n_ff, n, down));
    if (s->arch == PI_ARCH_OPT)
        PI_TRY(add_vec(l, true, s->row_major_down ? "ffn_down.bias" : "ffn_down_t.bias", n, 0,
                       0.1 * step));
out:
    return rc;
}

enum pi_code pi_synth_list(const struct pi_synth_rows *r, struct pi_synth_tensors *out,
                           struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_synth_spec *s = &r->spec;
    struct lister l = {.out = out, .s = s, .err = err};

    PI_TRY(add_filled(&l, false, "token_embd.weight", s->n_vocab, PI_SYNTH_EMBEDDING));
    if (s->arch == PI_ARCH_OPT) /* 2 rows stand before position 0 */
        PI_TRY(add_mat(&l, false, "position_embd.weight", s->n_ctx + 2, s->n_embd, 0.1));
    for (l.layer = 0; l.layer < s->n_layer; l.layer++) {
        PI_TRY(add_attn(&l, r->scale.step));
        PI_TRY(add_ffn(&l, r->scale.step));
    }
    l.layer = 0;
    PI_TRY(add_norm(&l, false, "output_norm"));
    PI_TRY(add_mat(&l, false, "output.weight", s->n_vocab, s->n_embd, LOGIT_SD / sqrt(s->n_embd)));
out:
    return rc;
}

/* ---- keys ----------------------------------------------------------------------------------- */

struct keys {
    struct pi_gguf_writer *w;
    const char *arch;
    struct pi_err *err;
};

static const char *arch_key(const struct keys *k, const char *name, char buf[static 96])
{
    (void)snprintf(buf, 96, "%s.%s", k->arch, name);
    return buf;
}

static enum pi_code set_shape(const struct keys *k, const struct pi_synth_spec *s)
{
    enum pi_code rc = PI_OK;
    const struct {
        const char *name;
        uint32_t value;
    } counts[] = {
        {"vocab_size", s->n_vocab},
        {"context_length", s->n_ctx},
        {"embedding_length", s->n_embd},
        {"block_count", s->n_layer},
        {"feed_forward_length", s->n_ff},
        {"attention.head_count", s->n_head},
        {"attention.head_count_kv", s->n_head_kv},
    };
    const bool opt = s->arch == PI_ARCH_OPT;
    char b[96];

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        PI_TRY(pi_gguf_set_u32(k->w, arch_key(k, counts[i].name, b), counts[i].value, k->err));
    PI_TRY(pi_gguf_set_f32(
        k->w,
        arch_key(k, opt ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", b),
        1e-5f, k->err));
    PI_TRY(pi_gguf_set_string(k->w, arch_key(k, "hidden_activation", b), "relu", k->err));
    if (!opt) {
        PI_TRY(pi_gguf_set_u32(k->w, arch_key(k, "rope.dimension_count", b), s->n_embd / s->n_head,
                               k->err));
        PI_TRY(pi_gguf_set_f32(k->w, arch_key(k, "rope.freq_base", b), 10000.0f, k->err));
    }
out:
    return rc;
}

/* llama.cpp's numbers for "mostly this type". */
static uint32_t file_type(enum pi_type type)
{
    static const uint32_t number[PI_TYPE_COUNT] = {
        [PI_TYPE_F16] = 1,   [PI_TYPE_Q4_0] = 2,  [PI_TYPE_Q4_1] = 3,  [PI_TYPE_Q8_0] = 7,
        [PI_TYPE_Q5_0] = 8,  [PI_TYPE_Q5_1] = 9,  [PI_TYPE_Q4_K] = 14, [PI_TYPE_Q5_K] = 16,
        [PI_TYPE_Q6_K] = 18, [PI_TYPE_BF16] = 32,
    };

    return number[type];
}

/* The name says what it is, wherever it is shown; the recipe is kept with it. */
static enum pi_code set_names(const struct keys *k, const struct pi_synth_spec *s)
{
    enum pi_code rc = PI_OK;
    char name[160];

    (void)snprintf(name, sizeof(name), "synthetic %s, %u layers, %u wide, %u neurons, %s", k->arch,
                   (unsigned)s->n_layer, (unsigned)s->n_embd, (unsigned)s->n_ff,
                   pi_type_name(s->type));
    PI_TRY(pi_gguf_set_string(k->w, "general.architecture", k->arch, k->err));
    PI_TRY(pi_gguf_set_string(k->w, "general.type", "model", k->err));
    PI_TRY(pi_gguf_set_string(k->w, "general.name", name, k->err));
    PI_TRY(pi_gguf_set_string(
        k->w, "general.description",
        "Synthetic: random weights for timing, made by pi-synth. It has learnt nothing.", k->err));
    PI_TRY(pi_gguf_set_string(k->w, "pi.created_by", PACKAGE_STRING " pi-synth", k->err));
    PI_TRY(pi_gguf_set_u32(k->w, "general.file_type", file_type(s->type), k->err));
    PI_TRY(pi_gguf_set_u32(k->w, "general.quantization_version", 2, k->err));
    PI_TRY(pi_gguf_set_bool(k->w, "pi.synthetic", true, k->err));
    PI_TRY(pi_gguf_set_u64(k->w, "pi.synthetic.seed", s->seed, k->err));
    PI_TRY(pi_gguf_set_u32(k->w, "pi.synthetic.rank", s->rank, k->err));
    PI_TRY(pi_gguf_set_f32(k->w, "pi.synthetic.density", s->density, k->err));
    PI_TRY(pi_gguf_set_f32(k->w, "pi.synthetic.alpha", s->alpha, k->err));
    PI_TRY(pi_gguf_set_f32(k->w, "pi.synthetic.knee", s->knee, k->err));
    PI_TRY(pi_gguf_set_f32(k->w, "pi.synthetic.spread", s->spread, k->err));
    PI_TRY(pi_gguf_set_f32(k->w, "pi.synthetic.noise", s->noise, k->err));
out:
    return rc;
}

static enum pi_code make_lineage(const struct pi_synth_spec *s, struct pi_lineage *out,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_lineage_sum *sum = NULL;
    char text[320];

    (void)snprintf(text, sizeof(text), "%d %u %u %u %u %u %u %u %u %a %a %a %a %a %" PRIu64,
                   s->arch, (unsigned)s->n_layer, (unsigned)s->n_embd, (unsigned)s->n_ff,
                   (unsigned)s->n_head, (unsigned)s->n_head_kv, (unsigned)s->n_vocab,
                   (unsigned)s->n_ctx, (unsigned)s->rank, (double)s->density, (double)s->alpha,
                   (double)s->knee, (double)s->spread, (double)s->noise, s->seed);
    PI_TRY(pi_lineage_begin(&sum, err));
    PI_TRY(pi_lineage_key(sum, "synthetic", text, strlen(text), err));
    rc = pi_lineage_end(sum, out, err);
    sum = NULL;
out:
    pi_lineage_abort(sum);
    return rc;
}

/* ---- vocabulary ----------------------------------------------------------------------------- */

/* Piece i of all strings over the letters, shorter ones first; a string comes without and then with a space in front. Every piece is one that merging
 * reaches, because its parts are pieces with better scores. */
static void spell(uint32_t i, char out[static PIECE_MAX])
{
    const char *const mark = i % 2 == 1 ? SPACE_MARK : "";
    char word[8], *p = word + sizeof(word) - 1;
    uint32_t k = i / 2 + 1; /* bijective base 26 */

    *p = '\0';
    for (; k > 0; k = (k - 1) / 26)
        *--p = (char)('a' + (k - 1) % 26);
    (void)snprintf(out, PIECE_MAX, "%s%s", mark, p);
}

static void spell_token(uint32_t id, char out[static PIECE_MAX], float *score, int32_t *type)
{
    static const char *const special[N_SPECIAL] = {"<unk>", "<s>", "</s>"};

    *score = 0;
    if (id < N_SPECIAL) {
        (void)snprintf(out, PIECE_MAX, "%s", special[id]);
        *type = id == 0 ? 2 : 3; /* unknown, control */
    } else if (id < N_SPECIAL + 256) {
        (void)snprintf(out, PIECE_MAX, "<0x%02X>", (unsigned)(id - N_SPECIAL));
        *type = 6; /* byte */
    } else {
        const uint32_t i = id - N_SPECIAL - 256;

        if (i == 0)
            (void)snprintf(out, PIECE_MAX, SPACE_MARK);
        else
            spell(i - 1, out);
        *score = -(float)i;
        *type = 1; /* normal */
    }
}

static enum pi_code set_vocab(const struct keys *k, uint32_t n)
{
    enum pi_code rc = PI_OK;
    char(*texts)[PIECE_MAX] = NULL;
    struct pi_str *strs = NULL;
    float *scores = NULL;
    int32_t *types = NULL;

    PI_ALLOC(texts, n, k->err);
    PI_ALLOC(strs, n, k->err);
    PI_ALLOC(scores, n, k->err);
    PI_ALLOC(types, n, k->err);
    for (uint32_t i = 0; i < n; i++) {
        spell_token(i, texts[i], &scores[i], &types[i]);
        strs[i] = (struct pi_str){texts[i], strlen(texts[i])};
    }
    PI_TRY(pi_gguf_set_string(k->w, "tokenizer.ggml.model", "llama", k->err));
    PI_TRY(pi_gguf_set_string(k->w, "tokenizer.ggml.pre", "default", k->err));
    PI_TRY(pi_gguf_set_strings(k->w, "tokenizer.ggml.tokens", strs, n, k->err));
    PI_TRY(pi_gguf_set_array(k->w, "tokenizer.ggml.scores", PI_GGUF_F32, scores, n, k->err));
    PI_TRY(pi_gguf_set_array(k->w, "tokenizer.ggml.token_type", PI_GGUF_I32, types, n, k->err));
    PI_TRY(pi_gguf_set_u32(k->w, "tokenizer.ggml.unknown_token_id", 0, k->err));
    PI_TRY(pi_gguf_set_u32(k->w, "tokenizer.ggml.bos_token_id", 1, k->err));
    PI_TRY(pi_gguf_set_u32(k->w, "tokenizer.ggml.eos_token_id", 2, k->err));
    PI_TRY(pi_gguf_set_bool(k->w, "tokenizer.ggml.add_bos_token", true, k->err));
out:
    free(texts);
    free(strs);
    free(scores);
    free(types);
    return rc;
}

enum pi_code pi_synth_begin(const struct pi_synth_spec *s, const struct pi_synth_tensors *list,
                            const char *path, struct pi_gguf_writer **w_out,
                            struct pi_lineage *lineage_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct keys k = {.arch = pi_arch_name((enum pi_arch)s->arch), .err = err};

    PI_TRY(make_lineage(s, lineage_out, err));
    PI_TRY(pi_gguf_writer_create(path, &k.w, err));
    PI_TRY(pi_gguf_align_pages(k.w, err));
    PI_TRY(set_names(&k, s));
    PI_TRY(set_shape(&k, s));
    PI_TRY(set_vocab(&k, s->n_vocab));
    PI_TRY(pi_lineage_store(k.w, lineage_out, err));
    for (size_t i = 0; i < list->n; i++) {
        const struct pi_synth_tensor *t = &list->t[i];

        PI_TRY(pi_gguf_add_tensor(k.w, t->name, t->type, (const uint64_t[]){t->n_cols, t->n_rows},
                                  t->n_rows > 1 ? 2 : 1, err));
    }
    PI_TRY(pi_gguf_begin(k.w, err));
    PI_TRY(pi_gguf_open_all(k.w, err));
    *w_out = k.w;
    k.w = NULL;
out:
    pi_gguf_abort(k.w);
    return rc;
}
