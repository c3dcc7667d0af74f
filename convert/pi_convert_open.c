/* A conversion's source: opened, checked, its lineage taken, its tensors planned. */
#include "config.h"

#include "convert/pi_convert_int.h"
#include "common/pi_tokenizer.h"
#include "convert/pi_argument.h"
#include "convert/pi_gguf_import.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void pi_conversion_close(struct pi_conversion *c)
{
    pi_plan_free(&c->plan);
    pi_vocab_free(&c->vocab);
    pi_source_close(&c->src);
    pi_json_free(&c->config);
    pi_import_free(&c->pred);
    free(c->counts);
    pi_gguf_close(&c->gguf);
}

static enum pi_code add_key(struct pi_lineage_sum *s, const char *name, double value,
                            struct pi_err *err)
{
    char text[40];
    int n = snprintf(text, sizeof(text), "%.9g", value);

    return pi_lineage_key(s, name, text, (size_t)n, err);
}

static enum pi_code add_name(struct pi_lineage_sum *s, const char *name, const char *value,
                             struct pi_err *err)
{
    return pi_lineage_key(s, name, value, strlen(value), err);
}

/* Over what the model computes and the checkpoint's own tensors: a sharded copy has the lineage of a whole one. */
static enum pi_code hf_lineage(struct pi_conversion *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_lineage_sum *sum = NULL;
    const struct pi_shape *s = &c->hf.shape;
    static const char *const rope_names[] = {[PI_HF_ROPE_DEFAULT] = "default",
                                             [PI_HF_ROPE_LINEAR] = "linear",
                                             [PI_HF_ROPE_LLAMA3] = "llama3",
                                             [PI_HF_ROPE_YARN] = "yarn"};
    const struct {
        const char *name;
        double value;
    } keys[] = {
        {"n_layer", s->n_layer},
        {"n_embd", s->n_embd},
        {"n_ff", s->n_ff},
        {"n_vocab", s->n_vocab},
        {"n_head", s->n_head},
        {"n_head_kv", s->n_head_kv},
        {"head_dim", s->head_dim},
        {"norm_eps", (double)s->norm_eps},
        {"act_threshold", (double)s->act_threshold},
        {"rope_base", (double)s->rope_base},
        {"rope_factor", (double)s->rope_factor},
    };

    PI_TRY(pi_lineage_begin(&sum, err));
    PI_TRY(add_name(sum, "arch", pi_arch_name(s->arch), err));
    PI_TRY(add_name(sum, "act", pi_activation_name(s->act), err));
    PI_TRY(add_name(sum, "rope", rope_names[c->hf.rope], err));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        PI_TRY(add_key(sum, keys[i].name, keys[i].value, err));
    if (c->hf.rotary_share != 1.0f)
        PI_TRY(add_key(sum, "rotary_share", (double)c->hf.rotary_share, err));
    if (s->post_norm)
        PI_TRY(add_key(sum, "post_norm", 1.0, err));
    for (size_t i = 0; i < c->plan.n; i++) {
        const struct pi_plan_tensor *p = &c->plan.t[i];
        const struct pi_src_tensor *t =
            p->owned != NULL ? NULL : pi_source_find(&c->src, p->src_name);
        if (t == NULL)
            continue;
        PI_TRY(pi_lineage_tensor(sum, (struct pi_str){p->name, strlen(p->name)}, t->dim, t->n_dims,
                                 t->data, t->bytes, err));
        pi_source_drop(&c->src, t->data, t->bytes);
    }
    rc = pi_lineage_end(sum, &c->lineage, err);
    sum = NULL;
out:
    pi_lineage_abort(sum);
    return rc;
}

static enum pi_code open_hf(struct pi_conversion *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_convert_options *o = c->opt;

    PI_TRY(pi_json_load(o->source, "config.json", false, &c->config, err));
    PI_TRY(pi_hf_config_read(&c->config, o->hidden_act, o->notes, &c->hf, err));
    PI_TRY(pi_source_open(o->source, &c->src, err));
    PI_TRY(pi_hf_map(&c->hf, &c->src, o->notes, &c->plan, err));
    PI_TRY(pi_hf_vocab_load(o->source, &c->hf, o->notes, &c->vocab, err));
    PI_TRY(hf_lineage(c, err));
    c->shape = c->hf.shape;
out:
    return rc;
}

/* The source's lineage; another activation makes it another model. */
static enum pi_code gguf_lineage(struct pi_conversion *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_lineage_sum *sum = NULL;
    const struct pi_shape *is = &c->shape;
    struct pi_shape was;

    PI_TRY(pi_model_lineage(&c->gguf, &c->lineage, err));
    if (c->opt->hidden_act == NULL ||
        (pi_shape_read(&c->gguf, NULL, &was, NULL) == PI_OK && was.act == is->act &&
         was.act_threshold == is->act_threshold))
        goto out;
    PI_TRY(pi_lineage_begin(&sum, err));
    PI_TRY(pi_lineage_key(sum, "source", c->lineage.hex, PI_HASH_HEX, err));
    PI_TRY(add_name(sum, "act", pi_activation_name(is->act), err));
    PI_TRY(add_key(sum, "act_threshold", (double)is->act_threshold, err));
    rc = pi_lineage_end(sum, &c->lineage, err);
    sum = NULL;
out:
    pi_lineage_abort(sum);
    return rc;
}

/* The result gets checksums of its own: damage that goes in here would come out as good data. Other programs copy our
 * metadata into files that they rewrite, though. */
static enum pi_code check_sums(const struct pi_conversion *c, struct pi_err *err)
{
    enum pi_code rc = pi_gguf_check_header_crc(&c->gguf, err);

    if (rc == PI_OK)
        rc = pi_gguf_check_crc(&c->gguf, err);
    if (rc != PI_E_CORRUPT || !c->opt->accept_edited)
        return rc;
    pi_note(c->opt->notes,
            "%s: its checksums do not fit: taken as another program wrote it; profiles and "
            "predictors of the original pass for its own",
            c->opt->source);
    return PI_OK;
}

/* Statistics that lie beside a GGUF file as PowerInfer wants them: read before hours of work. The folder may be another model's. */
static enum pi_code read_counts(struct pi_conversion *c, struct pi_err *err)
{
    enum pi_code rc;
    char *path = c->opt->output != NULL ? pi_path_artifact(c->opt->output, "profile", err) : NULL;
    struct pi_err why = {0};

    if (c->opt->output == NULL) /* --list */
        return PI_OK;
    if (path == NULL)
        return PI_E_NOMEM;
    if (access(path, F_OK) == 0) { /* perhaps the work of hours */
        pi_note(c->opt->notes, "%s is there already and stays as it is", path);
        free(path);
        return PI_OK;
    }
    free(path);
    rc = pi_import_activation(c->opt->source, &c->shape, &c->counts, &why);
    if (rc == PI_E_MISMATCH) {
        pi_note(c->opt->notes, "%s: another model's activation counts, left out", why.msg);
        return PI_OK;
    }
    return rc == PI_OK ? rc : pi_err_set(err, rc, "%s", why.msg);
}

/* What the self-check would find when all is written. A vocabulary that programs here cannot read is of use to others. */
static enum pi_code check_tokenizer(const struct pi_conversion *c, struct pi_err *err)
{
    struct pi_tokenizer *tok = NULL;
    struct pi_err why = {0};
    const enum pi_code rc = pi_tokenizer_create(&c->gguf, &tok, &why);

    pi_tokenizer_destroy(tok);
    if (rc == PI_E_UNSUPPORTED)
        pi_note(c->opt->notes, "%s: pi-run will not run the result", why.msg);
    else if (rc != PI_OK && (c->opt->self_check || rc == PI_E_NOMEM))
        return pi_err_set(err, rc, "%s", why.msg);
    return PI_OK;
}

static enum pi_code open_gguf(struct pi_conversion *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_open_parts(c->opt->source, PI_GGUF_NO_HEADER_CRC, &c->gguf, err));
    PI_TRY(check_sums(c, err));
    PI_TRY(pi_gguf_map(&c->gguf, &c->plan, err));
    PI_TRY(pi_shape_read(&c->gguf, c->opt->hidden_act, &c->shape, err));
    PI_TRY(gguf_lineage(c, err));
    pi_gguf_drop_all(&c->gguf);
    PI_TRY(check_tokenizer(c, err));
    if (c->opt->predictor == NULL)
        PI_TRY(pi_import_gguf(&c->gguf, &c->shape, &c->pred, err));
    PI_TRY(pi_gguf_check_names(&c->gguf, &c->shape, c->opt->notes, err));
    PI_TRY(read_counts(c, err));
out:
    return rc;
}

enum pi_code pi_conversion_open(struct pi_conversion *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_argument_check(c->opt->source, &c->is_hf, err));
    PI_TRY(c->is_hf ? open_hf(c, err) : open_gguf(c, err));
    if (c->opt->predictor != NULL)
        PI_TRY(pi_import_torch(c->opt->predictor, &c->shape, c->opt->recipe->file_type == 0,
                               &c->pred, err));
out:
    return rc;
}
